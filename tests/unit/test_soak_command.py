"""`lockstep soak` around its rounds: what it refuses, its records' names, its seeds, its exit code."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import stand_in
from typer.testing import CliRunner

from lockstep import cli
from lockstep.experiments.soak import command
from lockstep.experiments.soak.arm import Arm
from lockstep.experiments.soak.command import Options, is_wrong, run, span
from lockstep.experiments.soak.record import Tally
from lockstep.experiments.soak.rounds import Settings
from lockstep.experiments.stress import session
from lockstep.experiments.stress.session import SetupError
from lockstep.stacks.base import Choice
from lockstep.stacks.swift import description
from lockstep.stacks.swift.spec import JobSpec

ROUND = {"s": 0.5, "requests": 6, "pauses": 0, "paused_s": 0.0, "load": 1.0}
HANG = {**ROUND, "text": "rank 0 waits", "group": "rollout.dp", "cause": "offline-wave-race"}


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where stack and model are taken to be in place, and a soak is one round, which hangs as shipped."""
    stand_in(monkeypatch, tmp_path)

    def play(self: Arm, over: object) -> None:
        record = self._record
        kind = "hang" if record.tally.settings.remedy == "as shipped" else "round"
        record.add(kind, n=record.tally.rounds, **(HANG if kind == "hang" else ROUND))

    monkeypatch.setattr(Arm, "run", play)
    return tmp_path / "out"


def soak(out: Path, *, page: Path | None = None, **options: object) -> list[Tally]:
    return run("cpu", out=out, options=Options(**{"minutes": 1, **options}), page=page)  # type: ignore[arg-type]


def test_each_remedy_has_a_record_named_by_its_conditions(out: Path) -> None:
    tallies = soak(out, pause_rate=2.0, load=3)
    assert [tally.settings.remedy for tally in tallies] == ["as shipped", "independent ranks", "open wave"]
    assert {path.name for path in out.glob("*.jsonl")} == {
        "as_shipped_paused_load_3.jsonl",
        "independent_ranks_paused_load_3.jsonl",
        "open_wave_paused_load_3.jsonl",
    }
    assert {tally.settings.workers for tally in tallies} == {2}
    soak(out, remedies=("as shipped",), pause_rate=0.0)
    soak(out, remedies=("as shipped",), only=5)
    soak(out, remedies=("as shipped",), name="my own")
    names = ("as_shipped", "as_shipped_paused_round_5", "my_own")
    assert {f"{name}.jsonl" for name in names} < {path.name for path in out.glob("*.jsonl")}


def test_an_engine_behind_one_worker(out: Path) -> None:
    (tally,) = soak(out, remedies=("async engine",))
    assert tally.settings.workers == 1


def test_the_seed_is_the_records_or_a_new_one(out: Path) -> None:
    (first,) = soak(out, remedies=("open wave",))
    (again,) = soak(out, remedies=("open wave",))
    assert (again.rounds, again.settings.seed) == (2, first.settings.seed)
    (other,) = soak(out, remedies=("as shipped",), seed=0)
    assert other.settings.seed == 0
    with pytest.raises(SetupError, match="was begun with seed"):
        soak(out, remedies=("open wave",), seed=first.settings.seed + 1)


def test_the_page_has_all_records(out: Path, tmp_path: Path) -> None:
    soak(out, remedies=("open wave",), seed=3)
    soak(out, remedies=("as shipped",), seed=4, page=tmp_path / "soak.md")
    page = (tmp_path / "soak.md").read_text()
    assert "| open wave | pauses 3/s of 0.3 s | 3 | 1 | 0 |" in page
    assert "| as shipped | pauses 3/s of 0.3 s | 4 | 1 | 1 | 100% |" in page


def test_a_remedy_must_not_hang(out: Path) -> None:
    shipped, cured, _ = soak(out)
    assert shipped.hangs
    assert not is_wrong(shipped)
    assert not is_wrong(cured)
    cured.add({"k": "hang", "n": 1, **HANG})
    assert is_wrong(cured)
    shipped.add({"k": "failed", "n": 1, **HANG})
    assert is_wrong(shipped)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"remedies": ("prayer",)}, "no remedy is named 'prayer'; there are: as shipped, independent ranks"),
        ({"remedies": ("two servers",)}, "'two servers' changes the trainer's side"),
        ({"remedies": ("longer timeout",)}, "'longer timeout' changes the trainer's side"),
        ({"remedies": ("open wave", "as shipped", "open-wave")}, "--remedy 'open wave': given 2 times"),
        ({"requests": (3, 2)}, "--requests 3-2: expected"),
        ({"max_tokens": (0, 2)}, "--max-tokens 0-2: expected"),
        ({"pictures": 1.5}, r"--pictures 1\.5: expected"),
        ({"pictures": math.nan}, "--pictures nan: expected"),
        *(
            ({name: number}, f"--{option} {number}: expected a finite number of")
            for name, option in (
                ("minutes", "stress-minutes"),
                ("pause_s", "pause"),
                ("pause_rate", "pause-rate"),
            )
            for number in (-1.0, math.nan, math.inf, -math.inf)
        ),
        ({"minutes": 0.0}, r"--stress-minutes 0\.0: expected a finite number of more than 0"),
        ({"pause_s": 0.0}, r"--pause 0\.0: expected a finite number of more than 0"),
        ({"load": -1}, "--load -1: expected a number of at least 0"),
        ({"only": -1}, "--round -1: expected a number of at least 0"),
        *(({"name": name}, "--name .*: expected a file's name") for name in ("a/b", "/a", "..", ".", "a\\b")),
    ],
)
def test_what_makes_no_sense_is_refused(out: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        soak(out, **options)
    assert not out.exists()


def test_the_smallest_that_make_sense(out: Path) -> None:
    (tally,) = soak(out, remedies=("open wave",), only=0, pause_rate=0.0, load=0, name="v1.2 a")
    assert tally.settings.only == 0
    assert [path.name for path in out.glob("*.jsonl")] == ["v1.2_a.jsonl"]


@pytest.mark.parametrize("name", ["independent-ranks", "independent_ranks", "independent ranks"])
def test_a_remedys_name_with_hyphens_or_underscores(out: Path, name: str) -> None:
    (tally,) = soak(out, remedies=(name,))
    assert tally.settings.remedy == "independent ranks"
    assert [path.name for path in out.glob("*.jsonl")] == ["independent_ranks_paused.jsonl"]


@pytest.mark.parametrize("minutes", ["inf", "nan"])
def test_a_soak_that_makes_no_sense_is_refused_before_the_runs(
    out: Path, monkeypatch: pytest.MonkeyPatch, minutes: str
) -> None:
    monkeypatch.setattr(session, "run", lambda *_, **__: pytest.fail("the job was run"))
    done = CliRunner().invoke(cli.app, ["run", "--stress-minutes", minutes, "--out", str(out / "cpu_stress")])
    assert done.exit_code == 2
    assert "--stress-minutes" in done.output  # nan is refused by typer where it compares


def test_spans() -> None:
    assert span("2-8") == (2, 8)
    assert span("4") == (4, 4)
    for text in ("", "a-b", "1-2-3", "-1"):
        with pytest.raises(SetupError, match="expected a number, or two"):
            span(text)


def test_wrong_usage_exits_with_2(tmp_path: Path) -> None:
    for arguments in ([], ["--stress-minutes", "1", "--remedy", "prayer"], ["--stress-minutes", "0"]):
        argv = [sys.executable, "-m", "lockstep.cli", "soak", *arguments]
        argv[1:3] = ["-c", "from lockstep.cli import main; main()"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert list(tmp_path.iterdir()) == []


def test_on_gpus_it_has_a_worker_for_each_of_the_rollouts(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.devices, "find_gpus", lambda: list(range(8)))
    played: list[JobSpec] = []
    play = Arm.run
    monkeypatch.setattr(Arm, "run", lambda self, over: (played.append(self._spec), play(self, over)))
    chosen = Options(minutes=1, remedies=("open wave",), seed=1)
    (tally,) = run("cuda", out=out, options=chosen, page=None, gpu=Choice(rollout_gpus="3"))
    assert (tally.settings.device, tally.settings.workers) == ("cuda", 3)
    assert (played[0].layout.rollout, played[0].remedy) == ((5, 6, 7), "open wave")
    assert [path.name for path in out.glob("*.jsonl")] == ["open_wave_cuda_paused.jsonl"]


@pytest.mark.parametrize(("hangs", "code"), [(False, 0), (True, 1)])
def test_after_the_runs_of_the_job(
    out: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool, code: int
) -> None:
    told: list[str] = []

    def runs(*_: object, **__: object) -> list[object]:
        told.append("runs")
        return []

    def soaks(device: str, *, out: Path, options: Options, page: Path | None, gpu: Choice) -> list[Tally]:
        told.append(f"soak {device} {out} {options.minutes}")
        tally = Tally(Settings(remedy="open wave", seed=1, device=device, workers=2))
        tally.add({"k": "hang" if hangs else "round", "n": 0, **HANG})
        return [tally]

    monkeypatch.setattr(session, "run", runs)
    monkeypatch.setattr(command, "run", soaks)
    arguments = ["run", "--stress-minutes", "20", "--out", str(out / "cpu_stress")]
    assert CliRunner().invoke(cli.app, arguments).exit_code == code
    assert told == ["runs", f"soak cpu {out / 'soak'} 20.0"]
    del told[:]
    assert CliRunner().invoke(cli.app, arguments[:1]).exit_code == 0
    assert told == ["runs"]


def test_the_command_lines_defaults_are_the_settings() -> None:
    given = {
        name: parameter.default for name, parameter in inspect.signature(cli.soak.soak).parameters.items()
    }
    for name in ("pictures", "pause_rate", "pause_s", "load", "only"):
        assert given[name] == getattr(Settings, name)
    for name in ("requests", "max_tokens"):
        assert span(given[name]) == getattr(Settings, name)
    assert Path(given["out"]) == command.OUT


def test_default_remedies_are_known() -> None:
    _, trial = command._kit("swift")
    assert {command._remedy(trial, name).name for name in command.REMEDIES} == set(command.REMEDIES)


@pytest.mark.parametrize("content", ['{"loss": 1}\n', "no newline at its end", '{"k": "other"}\n'])
def test_a_file_of_somebody_else_is_refused_and_not_cut(
    out: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(description, "ensure_checkpoint", lambda _: pytest.fail("a model was made"))
    out.mkdir()
    (out / "data.jsonl").write_text(content)
    for name in ("", "data"):
        with pytest.raises(SetupError, match=r"data\.jsonl:1: expected the settings of a soak"):
            soak(out, remedies=("as shipped",), name=name)
    assert (out / "data.jsonl").read_text() == content
