"""`lockstep run` before and around the job: what it refuses, and the folder that it keeps."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import stand_in
from typer.testing import CliRunner

from lockstep import cli
from lockstep.experiments.stress import session
from lockstep.experiments.stress.session import SetupError
from lockstep.run.process_tree import StartError
from lockstep.run.run_lock import KEPT, MARK, HomeInUse, home, is_ours, left_text, mark, new_run, remove
from lockstep.run.summary_file import write_rows
from lockstep.stacks.base import StackError
from lockstep.stacks.swift import description


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the data set to stand in, where the stack and the model are taken to be in place."""
    return stand_in(monkeypatch, tmp_path)


def run(folder: Path, *only: str) -> list[object]:
    return list(session.run("cpu", steps=1, out=folder / "out", only=only))


def never(*_: object, **__: object) -> list[object]:
    raise AssertionError("nothing may be started")


def test_wrong_packages_are_refused_before_anything_else(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(device: str, **_: object) -> dict[str, str]:
        raise StackError("trl 0.24.0 is pinned, 0.23.0 is installed")

    monkeypatch.setattr(description, "check_stack", wrong)
    monkeypatch.setattr(session, "run_arms", never)
    with pytest.raises(SetupError, match=r"trl 0\.24\.0 is pinned, 0\.23\.0 is installed"):
        run(ready)
    assert not (ready / "out").exists()


def test_the_command_says_so_and_exits_with_2(tmp_path: Path) -> None:
    code = """
import importlib.metadata as m, sys
real = m.version
m.version = lambda name: "0.23.0" if name == "trl" else real(name)
import lockstep.stacks.swift.pins as s
s.version = m.version
sys.argv = ["lockstep", "run"]
from lockstep.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("lockstep: this is not the pinned stack for cpu: ")
    assert "trl 0.24.0 is pinned, 0.23.0 is installed" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_broken_line_of_the_data_set_is_named(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "run_arms", never)
    for split in ("train", "val"):
        path = ready / "datasets" / "shapes" / f"{split}.jsonl"
        whole = path.read_text()
        path.write_text(whole.replace("\n", '\n{"messages": []}\n', 1))
        with pytest.raises(SetupError, match=rf"{re.escape(str(path))}:2: expected 'messages'"):
            run(ready)
        path.write_text(whole)


@pytest.mark.parametrize("name", ["a[x]", "$HOME", "${A}b", "a*", "b?", "c::d"])
def test_a_checkout_whose_path_is_a_pattern_is_refused_before_anything_else(
    ready: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(description, "check_stack", never)
    monkeypatch.setattr(description, "ensure_checkpoint", never)
    monkeypatch.setattr(session, "run_arms", never)
    checkout = ready / name
    shutil.copytree(ready / "datasets", checkout / "datasets")
    monkeypatch.chdir(checkout)
    for command in (["run"], ["faults"], ["remedies"], ["soak", "--stress-minutes", "1"]):
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 2
        assert done.output.startswith(f"lockstep: {checkout}/datasets/shapes: the job cannot read its data")
    assert not (checkout / ".lockstep").exists()


@pytest.mark.parametrize("name", ["a b", "$", "a$ b", "{x}", "a:b", "проба", "a,b#c"])
def test_other_names_are_none(ready: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(session, "run_arms", lambda *_: [])
    shutil.copytree(ready / "datasets", ready / name / "datasets")
    monkeypatch.chdir(ready / name)
    assert run(ready / name) == []


def test_a_missing_data_set_is_named(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(ready / "datasets")
    with pytest.raises(
        SetupError, match=r"datasets/shapes/train\.jsonl: expected a readable JSON Lines file"
    ):
        run(ready)


def test_a_model_directory_that_is_none_is_named(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.fixtures import checkpoint

    place = ready / "models" / "qwen3-vl-tiny-key"
    place.mkdir(parents=True)
    monkeypatch.setattr(checkpoint, "recipe_key", lambda: "key")
    monkeypatch.setattr(description, "ensure_checkpoint", checkpoint.ensure_checkpoint)
    monkeypatch.setattr(session, "run_arms", never)
    with pytest.raises(
        SetupError, match=rf"{re.escape(str(place))}: not a complete checkpoint, config\.json is missing"
    ):
        run(ready)


def test_a_disk_without_room_is_refused(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LEAST_FREE_GIB", 1e9)
    monkeypatch.setattr(session, "run_arms", never)
    with pytest.raises(SetupError, match=r"out: \d+\.\d GiB are free on this disk; the runs need"):
        run(ready)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device", "/full/ledgers"), "^/full/ledgers: the disk is full$"),
        (OSError(122, "Disk quota exceeded", "/full/logs"), "^/full/logs: the disk is full$"),
        (StartError("'rollout' (swift) did not start: No such file"), "did not start: No such file"),
    ],
)
def test_runs_that_cannot_go_on_are_refused(
    ready: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(session, "run_arms", fail)
    with pytest.raises(SetupError, match=told):
        run(ready)


def test_unknown_devices_and_arms_are_refused(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "run_arms", never)
    with pytest.raises(SetupError, match="no such device: 'tpu'"):
        session.run("tpu", steps=1, out=ready / "out", only=[])
    with pytest.raises(
        SetupError, match="no arm is named x; there are: control, without the fix, with the fix"
    ):
        run(ready, "x")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["run", "--only", "control", "--only", "x"],
            "no arm is named x; there are: control, without the fix",
        ),
        (
            ["run", "--device", "cuda", "--only", "x"],
            "no arm is named x; there are: control, .*stopped, with",
        ),
        (["faults", "--only", "x"], "no fault is named x; there are: none, "),
        (["remedies", "--only", "x"], "no remedy is named x; there are: as shipped"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_is_looked_for(
    ready: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.setattr(description, "check_stack", never)
    monkeypatch.setattr(session.devices, "find_gpus", never)
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 2
    assert re.match(f"lockstep: {told}", done.output)
    assert not (ready / ".lockstep").exists()


def test_a_right_name_is_run(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(session, "run_arms", lambda arms, *_: chosen.extend(a.spec.name for a in arms) or [])
    run(ready, "control")
    assert chosen == ["control"]


def test_releases_wanted_instead_are_asked_for(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(description, "check_stack", lambda device, *, instead: asked.append(instead))
    for instead in (None, {"trl": "0.26.2"}):
        session.prepare("cpu", steps=1, out=ready / "out", instead=instead)
    assert asked == [{}, {"trl": "0.26.2"}]


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_run_says_that_nothing_is_left(
    ready: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: BaseException,
    code: int,
) -> None:
    def interrupted(*_: object) -> None:
        raise stop

    monkeypatch.setattr(session, "run_arms", interrupted)
    with pytest.raises(SystemExit) as caught:
        run(ready)
    assert caught.value.code == code
    assert "stopped: every process of the job has been ended" in " ".join(capsys.readouterr().out.split())


# -- the folder of the runs


def test_a_second_run_in_the_same_folder_is_refused(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def second(*_: object) -> list[object]:
        monkeypatch.setattr(session, "run_arms", never)
        with pytest.raises(
            SetupError, match=rf"out: another lockstep run \(process {os.getpid()}\) is using it"
        ):
            run(ready)
        return []

    monkeypatch.setattr(session, "run_arms", second)
    assert run(ready) == []


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from lockstep.run.run_lock import home\n"
        "with home(pathlib.Path(sys.argv[1])): print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(HomeInUse, match=f"process {other.pid}"), home(tmp_path):
            pass
        other.kill()
    with home(tmp_path):
        pass


OLD = [f"20260101-00000{i}" for i in range(6)]


def test_the_last_few_runs_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    for name in (*OLD, "mine", "20260101", "20260101-000000-copy"):
        mark(tmp_path / name)
        (tmp_path / name / "control").mkdir()
    (tmp_path / "20260101-000009").write_text("a file")
    with home(tmp_path) as left:
        there = {path.name for path in tmp_path.iterdir()} - {".lock"}
        assert there == {*OLD[-(KEPT - 1) :], "mine", "20260101", "20260101-000000-copy", "20260101-000009"}
    assert left == []


def test_folders_without_the_mark_stay(tmp_path: Path) -> None:
    """Of a user, or of an older release."""
    for name in OLD:
        (tmp_path / name).mkdir()
        (tmp_path / name / "photo.jpg").write_text("mine")
    with home(tmp_path) as left:
        assert [path.name for path in left] == OLD
    assert all((tmp_path / name / "photo.jpg").read_text() == "mine" for name in OLD)
    assert left_text(left).startswith(
        f"{tmp_path}: 6 folders without the mark of a run (.lockstep-made) stay: "
    )


def _wrong_marks(folder: Path, other: Path) -> None:
    """No mark of ours: other words, a link to one, that of another folder, a folder."""
    right = (mark(other) / MARK).read_text()
    (folder / OLD[0] / MARK).write_text("something else")
    (folder / OLD[1] / MARK).symlink_to(other / MARK)
    (folder / OLD[2] / MARK).write_text(right)
    (folder / OLD[3] / MARK).mkdir()
    (folder / OLD[4] / MARK).write_text(right.replace(other.name, OLD[0]))


def test_a_mark_that_is_not_the_folders_own_is_none(tmp_path: Path) -> None:
    for name in OLD:
        (tmp_path / "out" / name).mkdir(parents=True)
    _wrong_marks(tmp_path / "out", tmp_path / "other")
    with home(tmp_path / "out") as left:
        assert [path.name for path in left] == OLD


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither one in the place of a run nor one inside of a run."""
    away, out = tmp_path / "away", tmp_path / "out"
    mark(away / OLD[0])
    (away / "file").write_text("mine")
    for name in OLD[1:]:
        mark(out / name)
        (out / name / "there").symlink_to(away)
        (out / name / "control").mkdir()
        (out / name / "control" / "there").symlink_to(away)
        (out / name / "control" / "file").symlink_to(away / "file")
    (out / OLD[0]).symlink_to(away / OLD[0])
    with home(out):
        pass
    assert {path.name for path in out.iterdir()} == {".lock", OLD[0], *OLD[-(KEPT - 1) :]}
    assert (away / "file").read_text() == "mine"
    assert is_ours(away / OLD[0])


def test_a_run_gets_a_new_folder_with_the_mark(tmp_path: Path) -> None:
    """Also where two begin in one second."""
    runs = [new_run(tmp_path / "out"), new_run(tmp_path / "out")]
    assert len(set(runs)) == 2
    assert all(map(is_ours, runs))


def test_what_an_interrupted_removal_leaves_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = mark(tmp_path / OLD[0])
    for name in "abc":
        (place / name).mkdir()
    real = shutil.rmtree

    def stop(path: Path, **options: bool) -> None:
        if Path(path).name == "b":
            raise KeyboardInterrupt
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        remove(place)
    monkeypatch.undo()
    assert is_ours(place)
    assert remove(place)
    assert not place.exists()


@pytest.mark.parametrize("content", [b"my own lock file\n", b"\xff\xfe"])
def test_a_lock_file_of_somebody_else_is_not_written(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".lock").write_bytes(content)
    with pytest.raises(HomeInUse, match=r"\.lock: lockstep did not write this file"), home(tmp_path):
        pass
    assert (tmp_path / ".lock").read_bytes() == content


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HomeInUse, match=r"\.lock: "), home(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


SUMMARIES = [b"my own notes", b'{"accuracy": 0.9}', b'[{"accuracy": 0.9}]', b"[" * 100_000, b"\xff"]


@pytest.mark.parametrize("content", SUMMARIES)
def test_a_summary_of_somebody_else_is_refused_at_the_start(
    ready: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    for where, name in (
        (description, "check_stack"),
        (description, "ensure_checkpoint"),
        (session, "run_arms"),
    ):
        monkeypatch.setattr(where, name, never)
    for command in ("run", "faults", "remedies"):
        summary = ready / command / "summary.json"
        summary.parent.mkdir()
        summary.write_bytes(content)
        done = CliRunner().invoke(cli.app, [command, "--out", str(summary.parent)])
        assert done.exit_code == 2
        assert done.output.startswith(f"lockstep: {summary}: ")
        assert summary.read_bytes() == content
        assert [path.name for path in summary.parent.iterdir()] == ["summary.json"]


def test_a_summary_that_is_a_link_is_refused(ready: Path) -> None:
    (ready / "theirs.json").write_text("[]")
    (ready / "out").mkdir()
    (ready / "out" / "summary.json").symlink_to(ready / "theirs.json")
    with pytest.raises(SetupError, match=r"summary\.json: a link"):
        run(ready)


def test_a_summary_of_an_earlier_run_is_written_over(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "run_arms", lambda *_: [])
    summary = ready / "out" / "summary.json"
    write_rows([{"name": "control", "expected": "in step", "as_expected": True, "ledgers": "x"}], summary)
    assert run(ready) == []
    summary.write_text("[]")
    assert run(ready) == []


def test_old_folders_are_told_of(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "run_arms", lambda *_: [])
    (ready / "out" / OLD[0]).mkdir(parents=True)
    run(ready)
    assert capsys.readouterr().out.count("1 folder without the mark of a run") == 1


def test_a_folder_that_is_locked_by_another_is_left_alone(tmp_path: Path) -> None:
    for name in OLD:
        mark(tmp_path / name)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(HomeInUse), home(tmp_path):
            pass
    assert len(list(tmp_path.iterdir())) == 7


@pytest.mark.parametrize("there", [True, False])
def test_on_gpus_a_stub_of_the_cuda_toolkit_is_there_before_anything_is_started(
    ready: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(session.devices, "find_gpus", lambda: list(range(4)))
    monkeypatch.setattr(description.toolkit, "has_nvcc", lambda env: there)
    job = session.prepare("cuda", steps=1, out=ready / "runs" / "out")
    stub = ready / "runs" / "cuda_home" / "bin" / "nvcc"
    assert stub.exists() is not there
    assert job.cuda_home == (None if there else stub.parents[1])
