"""Runs one job to its end: starts its commands, watches their ledgers, stops the job when they say that it
is stuck."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.record import Ledger, LedgerError, LedgerTail
from lockstep.run import evidence, ras, scratch
from lockstep.run.health import is_healthy
from lockstep.run.lost_processes import Loss, Losses
from lockstep.run.port_ownership import Claims
from lockstep.run.ports import free_ports, release_ports
from lockstep.run.process_tree import Command as Running
from lockstep.run.process_tree import ProcessTree, WardenLostError
from lockstep.run.ras_report import witness
from lockstep.stacks.base import HOST, Command, Job
from lockstep.verdict import Kind, Verdict, judge

POLL_S = 0.5
LOOK_S = 1.0
WEIGH_S = 5.0
LAST_PULSE_S = 2.5
"""After the main command's end, until every process that still lives has written its counts once more (see
docs/ledger.md)."""
LAST_WORD_S = 6.0
"""The same where it failed: until their pulses prove that a rank without an end is not there."""
LOSS_S = 5.0
"""From the loss of a process until the job is ended for it: it may end by itself, and say more."""
FULL = "the disk is full"
"""What a failure says that comes of it."""
LEAST_FREE = 8 << 20
"""Bytes on the disk below which the job is ended: its logs and ledgers would be cut, and say nothing of the
reason."""


class JobError(RuntimeError):
    """The job could not be run to a verdict; the message names what failed, and its log or file."""


@dataclass(frozen=True)
class Limits:
    """When to give up, in seconds."""

    settle_s: float = 5.0
    """Without any movement for this long, ranks that differ are stuck."""
    stall_s: float = 120.0
    """Without any movement for this long, a job whose counts agree is given up; so is a main
    command that does not exit after its end."""
    start_s: float = 600.0
    """Every service must answer its health check within this time."""
    total_s: float = 3600.0


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    verdict: Verdict
    failure: str
    """What went wrong besides the verdict, with the process and its log; empty if nothing did."""
    seconds: float
    seconds_to_verdict: float
    """From the last movement in the job to the verdict `stuck` or `stalled`; otherwise from the main
    command's end."""
    start_seconds: float
    """From the start until every service was ready; 0 if that never was."""
    peak_memory: int
    """Bytes, all processes of the job together (PSS: what they share counts once), looked at every few
    seconds."""
    leftovers: list[str] = field(default_factory=list)


Progress = Callable[[LedgerTail, float, bool], None]
"""Called about twice a second with the ledgers so far, the job's age in seconds and whether every service is
ready."""


def run_job(job: Job, run_dir: Path, limits: Limits, progress: Progress) -> Outcome:
    """Runs `job` in `run_dir`, which must be new, and returns when no process of it is left.

    Whatever goes wrong in the job is in the outcome. Raises StartError when a command does not start at all,
    JobError when the job can no longer be watched, OSError when `run_dir` cannot be written.
    """
    for room in ("ledgers", "logs", "evidence"):
        (run_dir / room).mkdir(parents=True)
    ports = free_ports(job.ports_needed(), HOST)
    try:
        with scratch.scratch(run_dir) as folder, ProcessTree() as tree:
            outcome = _Watch(job, run_dir, folder, limits, ports, tree).run(progress)
    except (LedgerError, WardenLostError) as error:
        raise JobError(str(error)) from error
    finally:
        release_ports(ports)
    outcome.leftovers.extend(tree.leftovers())
    return outcome


class _Watch:
    def __init__(
        self,
        job: Job,
        run_dir: Path,
        folder: Path,
        limits: Limits,
        ports: Sequence[int],
        tree: ProcessTree,
    ) -> None:
        self._job, self._dir, self._scratch, self._limits, self._tree = job, run_dir, folder, limits, tree
        self._stack = job.stack
        self._tail = LedgerTail(run_dir)
        self._launch = job.launch(ports, run_dir)
        self._claims = Claims(HOST, self._launch.ports)
        self._unhealthy = {service.port_name: service.port for service in self._launch.services}
        self._losses = Losses(self._stack.service, [service.name for service in self._launch.services])
        self._lost: list[Loss] = []
        self._healthy_at: float | None = None
        self._finished_at: float | None = None
        self._peak = 0
        self._weighed = -WEIGH_S
        self._begun = time.monotonic()

    def run(self, progress: Progress) -> Outcome:
        services = [self._start(service.name, service.command) for service in self._launch.services]
        main = self._start(self._stack.main, self._launch.main)
        looked = 0.0
        while True:
            time.sleep(POLL_S)
            self._tail.refresh()
            progress(self._tail, self._age(), self._healthy_at is not None)
            if (status := main.poll()) is not None:
                return self._main_ended(status)
            for service in services:
                if (status := service.poll()) is not None:
                    when = (
                        "before it was ready"
                        if self._healthy_at is None
                        else f"while the {self._stack.main} was running"
                    )
                    return self._failed(
                        self._ended_text(self._stack.service, f"server ended with status {status} {when}")
                    )
            if self._age() - looked < LOOK_S:
                continue
            looked = self._age()
            self._check_health()
            if failure := self._trouble():
                return self._failed(failure)
            verdict = self._judge(self._tail.now())
            if self._given_up(verdict):
                told = self._collect(verdict)
                verdict = replace(verdict, evidence=(*verdict.evidence, *told))
                return self._outcome(verdict, verdict.still_s or 0.0)
            if failure := self._overdue(verdict):
                self._collect(verdict)
                return self._failed(failure)

    def _start(self, name: str, command: Command) -> Running:
        log = self._dir / "logs" / f"{name}.log"
        (self._dir / f"{name}.command.json").write_text(json.dumps({"argv": command.argv}, indent=1))
        private = scratch.environment(self._scratch, self._job.cache, self._stack.folders)
        # In the run's folder: a package may write to the folder where it is started.
        return self._tree.start(name, command.argv, env=command.env | private, cwd=self._dir, log=log)

    def _judge(self, now: float | None) -> Verdict:
        return judge(self._tail.ledgers, settle_s=self._limits.settle_s, now=now, names=self._stack.names)

    def _given_up(self, verdict: Verdict) -> bool:
        if self._healthy_at is None:
            return False  # imports and model loading leave no trace in any group
        if verdict.kind is Kind.STALLED:
            return (verdict.still_s or 0.0) >= self._limits.stall_s
        return verdict.kind is Kind.STUCK

    def _check_health(self) -> None:
        """Asks only servers of the job's own."""
        for name, port in list(self._unhealthy.items()):
            if self._claims.claimed(name) and is_healthy(port):
                del self._unhealthy[name]
        if self._healthy_at is None and not self._unhealthy:
            self._healthy_at = self._age()

    # -- what goes wrong

    def _trouble(self) -> str:
        """What makes waiting on pointless; empty if nothing does."""
        processes = self._tree.pids()
        if self._age() - self._weighed >= WEIGH_S:
            self._weighed = self._age()
            self._peak = max(self._peak, self._tree.pss())
        if taken := self._claims.stranger(lambda: [process.pid for process in self._tree.pids()]):
            return taken
        if full := self._full_disk():
            return full
        if self._finished_at is not None:
            return ""
        self._lost = self._losses.look(processes, self._tail.ledgers, self._tail.now())
        broken_off = any(ledger.ended is not None for ledger in self._mains())
        if not broken_off and any(self._tail.now() - loss.t >= LOSS_S for loss in self._lost):
            return "; ".join(map(self._loss_text, self._lost))
        return ""

    def _overdue(self, verdict: Verdict) -> str:
        """What has taken too long; empty if nothing has."""
        if self._tail.ledgers and not verdict.running and self._finished_at is None:
            self._finished_at = self._age()
        logs, limits = self._dir / "logs", self._limits
        if self._healthy_at is None:
            if self._age() < limits.start_s:
                return ""
            log = logs / f"{self._stack.service}.log"
            return (
                f"the {self._stack.service} server was not ready after {limits.start_s:.0f} s; "
                f"its log is {log}"
            )
        if self._finished_at is not None and self._age() - self._finished_at >= limits.stall_s:
            log = logs / f"{self._stack.main}.log"
            return (
                f"the {self._stack.main} did not exit within {limits.stall_s:.0f} s after training; "
                f"its log is {log}"
            )
        if verdict.kind is Kind.INCOMPLETE and (verdict.still_s or 0.0) >= limits.stall_s:
            return f"nothing has moved for {limits.stall_s:.0f} s; the job's logs are in {logs}"
        if self._age() >= limits.total_s:
            return f"the job was not finished after {limits.total_s:.0f} s; its logs are in {logs}"
        return ""

    def _full_disk(self) -> str:
        free = shutil.disk_usage(self._dir).free
        return "" if free >= LEAST_FREE else f"{self._dir}: {FULL}: {free >> 20} MiB are free"

    def _main_ended(self, status: int) -> Outcome:
        ended = time.monotonic()
        time.sleep(LAST_PULSE_S if status == 0 else LAST_WORD_S)
        if status == 0:
            self._tail.refresh()
            return self._outcome(self._judge(None), time.monotonic() - ended)
        main = self._ended_text(self._stack.main, f"ended with status {status}")
        # An engine may end because the weight sync's other end is gone: no reason, and not worth a word. One
        # that was gone first is the reason, though the trainer may have ended before anybody looked.
        self._tail.refresh()
        silent = min((x.ended or x.last_t for x in self._mains()), default=0.0)
        first = self._judge(None).lost
        lost = self._losses.look(self._tree.pids(), self._tail.ledgers, self._tail.now())
        self._lost = [loss for loss in lost if loss.t < silent or (first and loss.label == first)]
        texts = [self._full_disk(), *map(self._loss_text, self._lost), main]
        service, error = self._stack.service, self._stack.service_error
        if error and error in main and not self._lost:
            texts.append(f"in the {service}: {evidence.last_error(self._dir / 'logs', service)}")
        return self._failed("; ".join(filter(None, texts)))

    def _failed(self, failure: str) -> Outcome:
        self._tail.refresh()
        return self._outcome(self._judge(None), 0.0, failure)

    def _ended_text(self, side: str, how: str) -> str:
        return f"the {side} {how}: {evidence.last_error(self._dir / 'logs', side)}"

    def _loss_text(self, loss: Loss) -> str:
        logs = self._dir / "logs"
        if not loss.label:
            error = evidence.last_error(logs, self._stack.service)
            return f"a worker of the {self._stack.service} (pid {loss.pid}) ended: {error}"
        log = evidence.own_log(logs, loss.label)
        if not loss.by_itself:
            return f"the {loss.label} (pid {loss.pid}) died; its log is {log}"
        return f"the {loss.label} (pid {loss.pid}) ended: {evidence.error_in(log) or f'its log is {log}'}"

    def _mains(self) -> list[Ledger]:
        return [x for x in self._tail.ledgers if x.process and x.process.side == self._stack.main]

    def _collect(self, verdict: Verdict) -> list[str]:
        """Saves what explains a job that stopped; returns what NCCL itself says on the verdict's group."""
        evidence.collect(self._tree, self._dir)
        reports = ras.save(self._launch.ras, HOST, self._dir / "evidence")
        return [told for report in reports.values() if (told := witness(report, verdict))]

    def _outcome(self, verdict: Verdict, to_verdict: float, failure: str = "") -> Outcome:
        return Outcome(verdict, failure, self._age(), to_verdict, self._healthy_at or 0.0, self._peak)

    def _age(self) -> float:
        return time.monotonic() - self._begun
