"""One supervised job, with small programs in place of both commands: every way to fail is told, within
seconds, and leaves nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lockstep.record import Ledger, LedgerTail
from lockstep.run import evidence, scratch, supervise
from lockstep.run.lost_processes import Loss, Losses
from lockstep.run.ports import free_ports, release_ports
from lockstep.run.process_tree import ProcessInfo
from lockstep.run.supervise import JobError, Limits, Outcome, run_job
from lockstep.stacks.base import Command
from lockstep.stacks.swift import commands
from lockstep.stacks.swift.commands import Ports
from lockstep.stacks.swift.spec import JobSpec, cpu_job
from lockstep.verdict import Kind

FAKE = str(Path(__file__).with_name("fake_job.py"))
SPEC = cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))
LIMITS = Limits(settle_s=1.0, stall_s=120.0, start_s=120.0, total_s=240.0)
PROMPT_S = 60.0
"""Far below the limits and far above what anything here takes, also on a machine that is busy with other
things.
"""
SERVES = ["serve", "hang"]
TRAINS = ["until", "healthy", "ledger", "train", "ledger-end"]


def ignore(tail: LedgerTail, age: float, healthy: bool) -> None:
    pass


class Runner:
    """Runs a job of two fake commands; afterwards checks that no process of it is left.

    Tells them by flags what the supervisor noticed: `healthy`, `child seen` (of the rollout), `worker seen`
    (one with a ledger), `worker lost`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch = monkeypatch
        self.run_dir = folder / "run"
        self.flags = flags = folder / "flags"
        flags.mkdir()

        class Telling(Losses):
            def look(
                self, processes: Sequence[ProcessInfo], ledgers: Sequence[Ledger], now: float
            ) -> list[Loss]:
                lost = super().look(processes, ledgers, now)
                seen = {pid for pid, looks in self._looks.items() if looks > 1}
                recorded = {x.process.pid for x in ledgers if x.process and x.process.role == "worker"}
                for name, noticed in (
                    ("child seen", seen), ("worker seen", seen & recorded), ("worker lost", lost),
                ):  # fmt: skip
                    if noticed:
                        (flags / name).touch()
                return lost

        monkeypatch.setattr(supervise, "Losses", Telling)

    def __call__(
        self,
        rollout: list[str],
        trainer: list[str],
        limits: Limits = LIMITS,
        progress: supervise.Progress = ignore,
    ) -> Outcome:
        def command(side: str, actions: list[str]) -> Callable[..., Command]:
            def make(spec: JobSpec, ports: Ports, run_dir: Path, *_: object, **__: object) -> Command:
                env = {"PATH": os.environ["PATH"], "LOCKSTEP_RUN_DIR": str(run_dir), "FLAGS": str(self.flags)}
                return Command([sys.executable, "-S", FAKE, side, str(ports.http), *actions], env)

            return make

        def tell(tail: LedgerTail, age: float, healthy: bool) -> None:
            if healthy:
                (self.flags / "healthy").touch()
            progress(tail, age, healthy)

        self._monkeypatch.setattr(commands, "rollout_command", command("rollout", rollout))
        self._monkeypatch.setattr(commands, "trainer_command", command("trainer", trainer))
        try:
            return run_job(SPEC, self.run_dir, limits, tell)
        finally:
            assert self.remains() == []

    def remains(self) -> list[int]:
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if f"LOCKSTEP_RUN_DIR={self.run_dir}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    for name, seconds in {
        "POLL_S": 0.1,
        "LOOK_S": 0.2,
        "LAST_PULSE_S": 0.3,
        "LAST_WORD_S": 0.3,
        "LOSS_S": 1.0,
        "WEIGH_S": 0.0,
    }.items():
        monkeypatch.setattr(supervise, name, seconds)
    monkeypatch.setattr(evidence, "FLIGHT_S", 0.3)
    return Runner(monkeypatch, tmp_path)


def test_a_job_that_ends_well(run: Runner) -> None:
    seen: list[bool] = []
    outcome = run(SERVES, TRAINS, progress=lambda tail, age, healthy: seen.append(healthy))
    assert (outcome.verdict.kind, outcome.failure, outcome.leftovers) == (Kind.IN_STEP, "", [])
    assert 0 < outcome.start_seconds < outcome.seconds < PROMPT_S
    assert outcome.peak_memory > 1 << 20
    assert seen[0] is False
    assert not (run.run_dir / "tmp").exists()
    assert {p.name for p in run.run_dir.iterdir()} == {
        "ledgers", "logs", "evidence", "rollout.command.json", "trainer.command.json",
    }  # fmt: skip


def test_a_run_folder_that_exists_is_refused_before_anything_starts(run: Runner) -> None:
    (run.run_dir / "ledgers").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="ledgers"):
        run(SERVES, TRAINS)
    assert not (run.run_dir / "logs").exists()


# -- the rollout


def test_a_rollout_that_dies_at_start_up_is_told_at_once(run: Runner) -> None:
    outcome = run(["say", "ValueError: remaining_argv: ['--nonsense']", "exit", "2"], ["wait", "hang"])
    log = run.run_dir / "logs" / "rollout.log"
    told = "the rollout server ended with status 2 before it was ready: ValueError: remaining_argv: "
    assert outcome.failure == f"{told}['--nonsense'] ({log}:2)"
    assert outcome.verdict.kind is Kind.INCOMPLETE
    assert outcome.seconds < PROMPT_S


def test_a_rollout_that_ends_later_is_told(run: Runner) -> None:
    outcome = run(["serve", "until", "healthy", "say", "KeyError: 'x'", "exit", "1"], ["wait", "hang"])
    assert outcome.failure.startswith(
        "the rollout server ended with status 1 while the trainer was running: KeyError: 'x' ("
    )


def test_a_rollout_that_never_answers_is_given_up(run: Runner) -> None:
    outcome = run(["hang"], ["wait"], Limits(start_s=2.0))
    assert (
        outcome.failure
        == f"the rollout server was not ready after 2 s; its log is {run.run_dir / 'logs' / 'rollout.log'}"
    )
    assert outcome.start_seconds == 0
    assert outcome.seconds < PROMPT_S


def test_a_worker_that_dies_at_start_up_is_told_though_its_server_waits(run: Runner) -> None:
    outcome = run(["spawn-dies", "hang"], ["wait", "hang"])
    assert outcome.failure.startswith("a worker of the rollout (pid ")
    assert ") ended: RuntimeError: this worker cannot start (" in outcome.failure
    assert outcome.seconds < PROMPT_S


def test_a_worker_that_is_killed_is_told_with_its_log(run: Runner) -> None:
    outcome = run(["spawn", "serve", "until", "worker seen", "kill-worker", "hang"], ["wait", "hang"])
    assert outcome.failure.startswith("the rollout worker 0 (pid ")
    assert outcome.failure.endswith(f") died; its log is {run.run_dir / 'logs' / 'rollout-worker-0.log'}")
    assert outcome.seconds < PROMPT_S


def test_a_worker_that_lives_is_no_loss(run: Runner) -> None:
    outcome = run(["spawn", "serve", "hang"], ["until", "worker seen", *TRAINS])
    assert (outcome.verdict.kind, outcome.failure) == (Kind.IN_STEP, "")


# -- the trainer


def test_a_trainer_that_raises_is_told(run: Runner) -> None:
    outcome = run(SERVES, ["wait", "ledger", "say", "ValueError: no such shape", "ledger-end", "exit", "1"])
    log = run.run_dir / "logs" / "trainer.log"
    assert outcome.failure == f"the trainer ended with status 1: ValueError: no such shape ({log}:2)"
    assert outcome.verdict.kind is Kind.INCOMPLETE
    assert outcome.seconds < PROMPT_S


def test_a_trainer_that_is_killed_is_told(run: Runner) -> None:
    outcome = run(SERVES, ["wait", "say", "step 1", "die"])
    assert outcome.failure.startswith("the trainer ended with status -9: step 1 (")


def test_a_trainer_that_fails_for_the_rollouts_sake_names_that(run: Runner) -> None:
    error = "RuntimeError: Multiple errors: [Exception('Server 0 failed: 500, Internal Server Error')]"
    outcome = run(
        ["say", "ValueError: this prompt is too long", *SERVES], ["wait", "say", error, "exit", "1"]
    )
    assert error in outcome.failure
    assert "; in the rollout: ValueError: this prompt is too long (" in outcome.failure


def test_a_trainer_that_fails_because_a_worker_died_names_that_first(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LOSS_S", 600.0)
    outcome = run(
        ["spawn", "serve", "until", "worker seen", "kill-worker", "hang"],
        ["ledger", "until", "worker lost", "pulse-once", "say", "RuntimeError: x", "exit", "1"],
    )
    assert outcome.failure.startswith("the rollout worker 0 (pid ")
    assert "; the trainer ended with status 1: RuntimeError: x (" in outcome.failure


def test_what_dies_after_the_trainer_is_no_reason(run: Runner) -> None:
    outcome = run(
        ["spawn", "serve", "until", "trainer ended", "kill-worker", "hang"],
        [
            "ledger",
            "until",
            "worker seen",
            "ledger-end",
            "say",
            "ValueError: x",
            "tell",
            "trainer ended",
            "until",
            "worker lost",
            "exit",
            "1",
        ],
    )
    assert outcome.failure.startswith("the trainer ended with status 1: ValueError: x (")
    assert "worker" not in outcome.failure


def test_a_trainer_that_does_not_exit_is_given_up(run: Runner) -> None:
    outcome = run(SERVES, [*TRAINS, "hang"], Limits(stall_s=3.0))
    assert outcome.verdict.kind is Kind.IN_STEP
    assert outcome.failure.startswith("the trainer did not exit within 3 s after training; its log is ")


# -- time


def test_a_job_whose_probe_failed_is_given_up_when_nothing_moves(run: Runner) -> None:
    outcome = run(SERVES, ["wait", "ledger", "error", "pulse", "hang"], Limits(settle_s=0.5, stall_s=2.0))
    assert outcome.failure.startswith("nothing has moved for 2 s; the job's logs are in ")
    assert "the probe is broken" in outcome.verdict.sentence


def test_a_job_that_stalls_is_given_up(run: Runner) -> None:
    outcome = run(SERVES, ["wait", "ledger", "pulse", "hang"], Limits(settle_s=0.5, stall_s=2.0))
    assert (outcome.verdict.kind, outcome.failure) == (Kind.STALLED, "")
    assert 2 <= outcome.seconds_to_verdict < PROMPT_S


def test_on_gpus_nccls_own_word_stands_beside_the_verdict_and_does_not_make_it(
    run: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SPEC", SPEC.with_(device="cuda"))
    asked: list[dict[str, int]] = []

    def save(ports: dict[str, int], host: str, folder: Path) -> dict[str, str]:
        asked.append(dict(ports))
        return {"rollout": "a report", "trainer": "another"}

    monkeypatch.setattr(supervise.ras, "save", save)
    monkeypatch.setattr(
        supervise, "witness", lambda report, verdict: f"NCCL: {report}" if "a r" in report else ""
    )
    outcome = run(
        ["serve", "hang"], ["until", "healthy", "ledger", "pulse", "hang"], replace(LIMITS, stall_s=3.0)
    )
    assert outcome.verdict.kind is Kind.STALLED
    assert outcome.verdict.evidence[-1:] == ("NCCL: a report",)
    assert [sorted(ports) for ports in asked] == [["rollout", "trainer"]]


def test_a_job_that_takes_too_long_is_given_up(run: Runner) -> None:
    outcome = run(SERVES, ["wait", "hang"], Limits(total_s=2.0))
    assert outcome.failure == f"the job was not finished after 2 s; its logs are in {run.run_dir / 'logs'}"


# -- ports, disk, ledgers


@pytest.mark.parametrize("place", range(3))
def test_a_port_that_somebody_takes_is_named_with_its_holder(
    run: Runner, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    ports = free_ports(Ports.needed(1))
    release_ports(ports)
    monkeypatch.setattr(supervise, "free_ports", lambda *_: ports)
    with socket.create_server(("127.0.0.1", ports[place])):
        outcome = run(["hang"], ["hang"])
    name = ("rollout's HTTP server", "trainer's rendezvous", "weight sync")[place]
    told = f"the job's port for the {name} was taken before it could listen there: port {ports[place]} of"
    assert outcome.failure.startswith(f"{told} 127.0.0.1 is in use by process {os.getpid()} (")
    assert outcome.seconds < PROMPT_S


def test_a_port_of_the_jobs_own_is_not_taken(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(Ports.needed(1))
    release_ports(ports)
    monkeypatch.setattr(supervise, "free_ports", lambda *_: ports)
    trainer = ["listen", str(ports[1]), "listen", str(ports[2]), *TRAINS]
    assert run(SERVES, trainer).failure == ""


def test_a_full_disk_ends_the_job(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 30, (1 << 30) - (3 << 20), 3 << 20))
    outcome = run(SERVES, ["wait", "hang"])
    assert outcome.failure == f"{run.run_dir}: the disk is full: 3 MiB are free"
    assert outcome.seconds < PROMPT_S


def test_a_full_disk_explains_a_trainer_that_failed(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    began = time.monotonic()
    monkeypatch.setattr(supervise, "LOOK_S", 600.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 0))
    outcome = run(["hang"], ["say", "OSError: [Errno 28] No space left on device", "exit", "1"])
    assert outcome.failure.startswith(
        f"{run.run_dir}: the disk is full: 0 MiB are free; the trainer ended with status 1: OSError"
    )
    assert time.monotonic() - began < PROMPT_S


def test_a_ledger_that_cannot_be_read_ends_the_job(run: Runner) -> None:
    def spoil(tail: LedgerTail, age: float, healthy: bool) -> None:
        path = run.run_dir / "ledgers" / "trainer-rank-0-1.jsonl"
        if not path.exists():
            path.mkdir()

    with pytest.raises(JobError, match=r"trainer-rank-0-1\.jsonl: cannot read the ledger"):
        run(SERVES, ["wait", "hang"], progress=spoil)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), OSError(errno.EPIPE, "Broken pipe")])
def test_whatever_ends_the_watching_ends_the_job(run: Runner, error: BaseException) -> None:
    def stop(tail: LedgerTail, age: float, healthy: bool) -> None:
        if healthy:
            raise error

    with pytest.raises(type(error)):
        run(["spawn", *SERVES], ["wait", "hang"], progress=stop)
    assert not (run.run_dir / "tmp").exists()


# -- scratch


def test_scratch_is_in_the_run_folder_unless_sockets_would_not_fit(tmp_path: Path) -> None:
    short = Path("/tmp") / f"s{os.getpid()}"
    deep = tmp_path / ("x" * 100)
    for run_dir in (short, deep):
        run_dir.mkdir()
        try:
            with scratch.scratch(run_dir) as folder:
                assert folder.is_dir()
                assert (folder.parent == run_dir) is (run_dir is short)
                with socket.socket(socket.AF_UNIX) as bound:
                    bound.bind(str(folder / "00000000-0000-0000-0000-000000000000"))
            assert not folder.exists()
        finally:
            shutil.rmtree(run_dir)


def test_a_folder_of_the_greatest_length_has_room_for_sockets(tmp_path: Path) -> None:
    folder = Path("/tmp") / ("x" * (scratch.LONGEST - 5))
    folder.mkdir()
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(folder / "00000000-0000-0000-0000-000000000000"))
        with socket.socket(socket.AF_UNIX) as bound, pytest.raises(OSError, match="too long"):
            bound.bind(str(folder / "00000000-0000-0000-0000-0000000000001"))
    finally:
        shutil.rmtree(folder)


def test_what_was_compiled_can_be_kept(tmp_path: Path) -> None:
    folder, cache = tmp_path / "tmp", tmp_path / "cache"
    kept, ours = (scratch.environment(folder, to, SPEC.stack.folders) for to in (cache, None))
    assert set(ours) < set(kept)
    for name, value in kept.items():
        assert value.startswith(str(cache if name not in ours else folder))
    assert "VLLM_CACHE_ROOT" not in ours
