"""Ways in which the real job fails: each is told within seconds of its happening, by process and log, and
leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("swift")
pytest.importorskip("vllm")

from jobs import ROOT, by_label, leaves_nothing, pid, processes, run, small_job

from lockstep.record import Ledger, LedgerTail
from lockstep.verdict import Kind

pytestmark = [pytest.mark.lockstep_slow, pytest.mark.lockstep_stress]

RAISES = """
import os
from swift.plugin.orm import ORM, orms

class Shapes(ORM):
    def __call__(self, completions, solution, **kwargs):
        if os.environ["RANK"] == "1":
            raise ValueError("this reward knows no " + solution[0])
        return [0.5] * len(completions)

orms["shapes"] = Shapes
"""


class Once:
    """Does something at the first look at which `when` gives a process, and measures the time from then."""

    def __init__(self, when: Callable[[list[Ledger]], int | None], what: Callable[[int], None]) -> None:
        self._when, self._what = when, what
        self.pid = 0
        self._t = 0.0

    def __call__(self, ledgers: list[Ledger]) -> None:
        if not self.pid and (found := self._when(ledgers)):
            self.pid, self._t = found, time.monotonic()
            self._what(found)

    def seconds(self) -> float:
        assert self.pid, "it never happened"
        return time.monotonic() - self._t


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def test_a_rollout_that_refuses_its_arguments(model: Path, tmp_path: Path) -> None:
    spec = small_job(model)
    outcome = run(spec.with_(rollout={**spec.rollout, "vllm_max_model_len": "many"}), tmp_path / "run")
    assert outcome.failure.startswith("the rollout server ended with status ")
    assert " before it was ready: " in outcome.failure
    assert "many" in outcome.failure
    assert str(tmp_path / "run" / "logs" / "rollout") in outcome.failure
    assert outcome.seconds < 60


def test_an_engine_that_cannot_start(model: Path, tmp_path: Path) -> None:
    spec = small_job(model)
    outcome = run(spec.with_(rollout={**spec.rollout, "vllm_max_model_len": 10_000_000}), tmp_path / "run")
    assert "ValidationError: 1 validation error for ModelConfig (" in outcome.failure
    assert str(tmp_path / "run" / "logs" / "rollout-worker-") in outcome.failure
    assert outcome.seconds < 120


def test_a_trainer_rank_that_is_killed_while_it_starts(model: Path, tmp_path: Path) -> None:
    def rank(ledgers: list[Ledger]) -> int | None:
        found = by_label(ledgers, "trainer rank 1")
        return pid(found) if found else None

    killed = Once(rank, kill)
    outcome = run(small_job(model), tmp_path / "run", killed)
    assert killed.seconds() < 30
    log = tmp_path / "run" / "logs" / "trainer-rank-1.log"
    assert f"rank 1 (pid {killed.pid}) ended with status -9: its log is {log}" in outcome.failure


def test_an_engine_core_that_is_killed_in_a_generation(model: Path, tmp_path: Path) -> None:
    def core(ledgers: list[Ledger]) -> int | None:
        worker, found = by_label(ledgers, "rollout worker 1"), by_label(ledgers, "rollout engine core 1")
        return pid(found) if worker and found and worker.passed.get("generate begin") else None

    killed = Once(core, kill)
    outcome = run(small_job(model), tmp_path / "run", killed)
    assert killed.seconds() < 30
    log = tmp_path / "run" / "logs" / "rollout-engine_core-1.log"
    assert f"the rollout engine core 1 (pid {killed.pid}) died; its log is {log}" in outcome.failure
    assert outcome.verdict.kind in (Kind.INCOMPLETE, Kind.DIVERGED)


def test_a_reward_that_raises_on_one_rank(model: Path, tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(RAISES)
    outcome = run(small_job(model).with_(reward=reward), tmp_path / "run")
    log = tmp_path / "run" / "logs" / "trainer-rank-1.log"
    assert outcome.failure.startswith("the trainer ended with status 1: rank 1 (pid ")
    assert "ValueError: this reward knows no " in outcome.failure
    assert str(log) in outcome.failure


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_full_when_a_checkpoint_is_saved(model: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "48m") as disk:
        outcome = run(small_job(model, eval_steps=5), disk / "run")
        assert f"{disk / 'run'}: the disk is full: " in outcome.failure
        assert outcome.verdict.passed["trainer rank"]["step"] == 1


def test_a_disk_that_is_full_from_the_start(model: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        outcome = run(small_job(model), disk / "run")
        assert outcome.failure.startswith(f"{disk / 'run'}: the disk is full: ")
        assert outcome.seconds < 20


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for sockets: then all that a job writes is in its own folder."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-"))
    yield folder
    shutil.rmtree(folder)


def runner_ends(folder: Path, how: signal.Signals, when: Callable[[list[Ledger]], object]) -> tuple[int, str]:
    """Exit status and output of a `lockstep run` that gets a signal at some moment of its job."""
    out = folder / "out"
    argv = [
        sys.executable,
        "-c",
        "from lockstep.cli import main; main()",
        "run",
        "--steps",
        "1",
        "--only",
        "control",
        "--out",
        str(out),
    ]
    for shared in ("models", "cache"):
        (folder / shared).symlink_to(ROOT / ".lockstep" / shared)
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that runs these tests in the background has made them, and so the runner, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as runner:
        assert runner.stdout is not None
        deadline = time.monotonic() + 240
        while not (found := list(out.glob("*/control"))):
            assert runner.poll() is None, runner.stdout.read()
            time.sleep(0.2)
        [run_dir] = found
        with leaves_nothing(run_dir):
            tail = LedgerTail(run_dir)
            while not when(tail.ledgers):
                assert time.monotonic() < deadline
                assert runner.poll() is None
                time.sleep(0.5)
                tail.refresh()
            assert len(processes(run_dir)) > 5
            runner.send_signal(how)
            ended = time.monotonic()
            output, _ = runner.communicate(timeout=30)
            while processes(run_dir):
                assert time.monotonic() - ended < 20, processes(run_dir)
                time.sleep(0.2)
    return runner.returncode, " ".join(output.split())


def imported(ledgers: list[Ledger]) -> bool:
    return len(ledgers) >= 3


def trains(ledgers: list[Ledger]) -> bool:
    rank = by_label(ledgers, "trainer rank 0")
    return bool(rank and rank.passed.get("generate begin"))


def test_a_runner_that_is_killed_takes_the_starting_job_with_it(model: Path, short: Path) -> None:
    status, _ = runner_ends(short, signal.SIGKILL, imported)
    assert status == -signal.SIGKILL


def test_a_runner_that_is_interrupted_ends_the_training_job(model: Path, short: Path) -> None:
    status, output = runner_ends(short, signal.SIGINT, trains)
    assert status == 130
    assert "stopped: every process of the job has been ended" in output
