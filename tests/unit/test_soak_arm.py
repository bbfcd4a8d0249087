"""A soak with a small program in the rollout's place: hangs are found and gone on after, slow rounds are no
hangs, what fails is told, and nothing is left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lockstep.experiments.soak import arm, rollout
from lockstep.experiments.soak.arm import Arm, SoakError
from lockstep.experiments.soak.record import Record, Tally, read
from lockstep.experiments.soak.rounds import Prompt, Settings
from lockstep.record import read_directory
from lockstep.run.supervise import Limits
from lockstep.stacks.base import Command
from lockstep.stacks.judging import judge
from lockstep.stacks.swift import commands
from lockstep.stacks.swift.commands import Ports
from lockstep.stacks.swift.spec import JobSpec, cpu_job
from lockstep.verdict import Kind

FAKE = str(Path(__file__).with_name("fake_rollout.py"))
SPEC = cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))
LIMITS = Limits(settle_s=1.0, start_s=20.0)
PROMPTS = [Prompt("What?", ())] * 2
SETTINGS = Settings(remedy="as shipped", seed=7, device="cpu", workers=1, pause_rate=0.0)

Soak = Callable[..., Tally]


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Soak:
    """Soaks on servers that do with their requests what `lives` say, and checks that nothing is left."""

    def go(
        lives: list[list[str]],
        rounds: int,
        settings: Settings = SETTINGS,
        seconds: float = 60.0,
        stop: BaseException | None = None,
    ) -> Tally:
        left = list(lives)

        def command(spec: JobSpec, ports: Ports, run_dir: Path, *_: object, **__: object) -> Command:
            how = left.pop(0) if len(left) > 1 else left[0]
            env = {"PATH": os.environ["PATH"], "LOCKSTEP_RUN_DIR": str(run_dir)}
            return Command([sys.executable, "-S", FAKE, str(ports.http), *how], env)

        monkeypatch.setattr(commands, "rollout_command", command)

        def over(tally: Tally) -> bool:
            if stop is not None and tally.rounds >= rounds:
                raise stop
            return tally.rounds >= rounds or time.monotonic() >= until

        record = Record(tmp_path / "x.jsonl", settings)
        until = time.monotonic() + seconds
        own = Arm(SPEC.stack.soak, SPEC, record, PROMPTS, tmp_path / "x", LIMITS, lambda record, what: None)
        try:
            own.run(over)
        finally:
            assert processes(tmp_path) == []
        assert read(tmp_path / "x.jsonl").rounds == record.tally.rounds
        return record.tally

    for name, value in {"LOOK_AFTER_S": 0.5, "LOOK_S": 0.2, "SLOW_S": 6.0}.items():
        monkeypatch.setattr(arm, name, value)
    monkeypatch.setattr(rollout, "POLL_S", 0.1)
    monkeypatch.setattr(rollout.Rollout, "collect", lambda self: None)
    return go


def processes(folder: Path) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"LOCKSTEP_RUN_DIR={folder}".encode() in environment:
            found.append(pid)
    return found


def test_rounds_are_played_one_after_another(soak: Soak, tmp_path: Path) -> None:
    tally = soak([["answer"]], 12)
    assert (tally.rounds, tally.answered, tally.starts, tally.hangs) == (12, 12, 1, [])
    assert 2 * 12 <= tally.requests <= 6 * 12
    assert list((tmp_path / "x").iterdir()) == []  # of engines that did not hang nothing is kept


def test_a_hang_is_found_and_the_soak_goes_on(soak: Soak, tmp_path: Path) -> None:
    tally = soak([["answer", "hang"], ["answer", "answer", "hang"], ["answer"]], 8)
    assert (tally.rounds, tally.answered, tally.starts) == (8, 6, 3)
    assert [hang["n"] for hang in tally.hangs] == [1, 4]
    assert {hang["group"] for hang in tally.hangs} == {"rollout.dp"}
    assert "rank 0 waits in all_reduce #2 of 2 int32" in tally.hangs[0]["text"]
    assert 1.0 <= tally.hangs[0]["s"] < 6.0
    # Its ledgers say it again, to anyone.
    assert judge(read_directory(tmp_path / "x" / "start-0"), settle_s=1.0).kind is Kind.STUCK
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["start-0", "start-1"]


def test_only_the_first_hangs_are_kept(soak: Soak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm, "KEPT", 1)
    tally = soak([["hang"], ["hang"], ["answer"]], 3)
    assert len(tally.hangs) == 2
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["start-0"]


def test_a_slow_round_is_no_hang(soak: Soak) -> None:
    tally = soak([["slow", "answer"]], 3)
    assert (tally.answered, tally.starts, tally.hangs, tally.failures) == (3, 1, [], [])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("error", "HTTP status 500"),
        ("few", "answers to"),
        ("die", "no answer"),
    ],
)
def test_a_round_that_fails_is_told_and_gone_on_after(soak: Soak, how: str, words: str) -> None:
    tally = soak([["answer", how], ["answer"]], 4)
    assert (tally.answered, tally.starts, tally.hangs) == (3, 2, [])
    (failed,) = tally.failures
    assert failed["n"] == 1
    assert words in failed["text"]


def test_a_round_that_is_only_not_answered_fails_in_the_end(
    soak: Soak, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout.Rollout, "is_hang", staticmethod(lambda verdict: False))
    monkeypatch.setattr(arm, "SLOW_S", 2.0)
    tally = soak([["hang"], ["answer"]], 2)
    assert "no answer after 2 s" in tally.failures[0]["text"]


def test_what_fails_again_and_again_ends_the_soak(soak: Soak) -> None:
    with pytest.raises(SoakError, match="3 rounds failed one after another: HTTP status 500"):
        soak([["answer", "error"], ["error"], ["error"], ["answer"]], 9)


def test_failures_between_answers_do_not(soak: Soak) -> None:
    tally = soak([["error"], ["error"], ["answer", "error"], ["answer"]], 6)
    assert (tally.answered, len(tally.failures)) == (3, 3)


def test_a_server_that_does_not_start_is_told_with_its_log(soak: Soak) -> None:
    with pytest.raises(SoakError, match=r"did not start: the server ended with status 1: .*rollout\.log"):
        soak([[]], 1, replace(SETTINGS))


def test_engines_that_do_not_answer_their_first_round_are_told(soak: Soak, tmp_path: Path) -> None:
    with pytest.raises(SoakError, match="did not start: its first round failed: HTTP status 500"):
        soak([["cold"]], 1)
    assert read(tmp_path / "x.jsonl").starts == 0


def test_the_time_ends_it(soak: Soak) -> None:
    begun = time.monotonic()
    tally = soak([["answer"]], 10**6, seconds=6.0)
    assert tally.rounds > 1
    assert 6 < time.monotonic() - begun < 30


def test_it_goes_on_with_the_next_round(soak: Soak) -> None:
    soak([["answer", "hang"], ["answer"]], 3)
    tally = soak([["answer"]], 5)
    assert (tally.rounds, tally.starts) == (5, 3)
    assert [hang["n"] for hang in tally.hangs] == [1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_ends_all_and_it_goes_on_later(soak: Soak, tmp_path: Path, stop: BaseException) -> None:
    with pytest.raises(type(stop)):
        soak([["answer"]], 3, stop=stop)
    assert list((tmp_path / "x").iterdir()) == []
    assert soak([["answer"]], 5).answered == 5


def test_the_worker_is_paused_and_a_core_kept_busy(soak: Soak) -> None:
    settings = replace(SETTINGS, pause_rate=50.0, pause_s=0.2, load=1)
    tally = soak([["slow", "answer"]], 1, settings)
    assert tally.pauses > 3
    assert 0.3 < tally.paused_s < 3.5
    assert tally.answered == 1


def test_a_folder_of_somebody_else_is_not_removed(soak: Soak, tmp_path: Path) -> None:
    (tmp_path / "x" / "start-0").mkdir(parents=True)
    (tmp_path / "x" / "start-0" / "file").write_text("mine")
    with pytest.raises(SoakError, match="start-0: lockstep did not make this folder"):
        soak([["ok"]], 1)
    assert (tmp_path / "x" / "start-0" / "file").read_text() == "mine"
