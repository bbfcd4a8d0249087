"""Runs one job to its end: starts both commands, watches their ledgers, stops the job when they say that it is stuck."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.job import evidence
from lockstep.job.launch import HOST, Command, Ports, rollout_command, trainer_command
from lockstep.job.ports import free_ports
from lockstep.job.processes import Command as Running
from lockstep.job.processes import ProcessTree
from lockstep.job.spec import JobSpec
from lockstep.ledger import LedgerTail
from lockstep.verdict import Kind, Verdict, judge

POLL_S = 0.5
JUDGE_S = 1.0
LAST_PULSE_S = 2.5
"""After the trainer's end, until every process that still lives has written its counts once more (see docs/ledger.md)."""


class JobError(RuntimeError):
    """The job could not be run to a verdict; the message names the process and its log."""


@dataclass(frozen=True)
class Limits:
    """When to give up, in seconds."""

    settle_s: float = 5.0
    """Without any movement for this long, ranks that differ are stuck."""
    stall_s: float = 120.0
    """Without any movement for this long, a job whose counts agree is given up."""
    start_s: float = 600.0
    """The rollout must answer its health check within this time."""
    total_s: float = 3600.0


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    verdict: Verdict
    failure: str
    """Why a command ended otherwise than it should; empty if both did as they should, or if the job was stopped."""
    seconds: float
    seconds_to_verdict: float
    """From the last movement in the job to the verdict `stuck` or `stalled`; otherwise from the trainer's end."""
    start_seconds: float
    """From the start to the rollout's first healthy answer."""
    peak_rss: int
    """Bytes, summed over the job's processes; shared pages count once per process."""
    leftovers: list[str] = field(default_factory=list)


Progress = Callable[[LedgerTail, float, bool], None]
"""Called about twice a second with the ledgers so far, the job's age in seconds and whether the rollout is healthy."""


def run_job(spec: JobSpec, run_dir: Path, limits: Limits, progress: Progress) -> Outcome:
    """Runs `spec` in `run_dir`, which must be new, and returns when no process of it is left.

    Raises JobError when the rollout does not come up or dies, OSError when `run_dir` cannot be written.
    """
    for room in ("ledgers", "logs", "evidence"):
        (run_dir / room).mkdir(parents=True)
    ports = Ports(*free_ports(3, HOST))
    with ProcessTree() as tree:
        watch = _Watch(spec, run_dir, limits, ports, tree)
        outcome = watch.run(progress)
    outcome.leftovers.extend(tree.leftovers())
    return outcome


class _Watch:
    def __init__(self, spec: JobSpec, run_dir: Path, limits: Limits, ports: Ports, tree: ProcessTree) -> None:
        self._spec, self._dir, self._limits, self._ports, self._tree = spec, run_dir, limits, ports, tree
        self._tail = LedgerTail(run_dir)
        self._healthy_at: float | None = None
        self._peak = 0
        self._begun = time.monotonic()

    def run(self, progress: Progress) -> Outcome:
        rollout = self._start("rollout", rollout_command(self._spec, self._ports, self._dir))
        trainer = self._start("trainer", trainer_command(self._spec, self._ports, self._dir))
        judged = 0.0
        while True:
            time.sleep(POLL_S)
            self._check_health()
            self._tail.refresh()
            progress(self._tail, self._age(), self._healthy_at is not None)
            status = trainer.poll()
            if status is not None:
                return self._ended(status)
            if rollout.poll() is not None:
                return self._rollout_died(rollout)
            if self._age() - judged >= JUDGE_S:
                judged = self._age()
                self._peak = max(self._peak, self._tree.rss())
                verdict = self._judge(time.time())
                if self._given_up(verdict):
                    evidence.collect(self._tree, self._dir)
                    return self._outcome(verdict, verdict.still_s or 0.0, "")
            self._check_time()

    def _start(self, name: str, command: Command) -> Running:
        log = self._dir / "logs" / f"{name}.log"
        (self._dir / f"{name}.command.json").write_text(json.dumps({"argv": command.argv}, indent=1))
        return self._tree.start(name, command.argv, env=command.env, log=log)

    def _judge(self, now: float | None) -> Verdict:
        return judge(self._tail.ledgers, settle_s=self._limits.settle_s, now=now)

    def _given_up(self, verdict: Verdict) -> bool:
        if self._healthy_at is None:
            return False  # imports and model loading leave no trace in any group
        if verdict.kind is Kind.STALLED:
            return (verdict.still_s or 0.0) >= self._limits.stall_s
        return verdict.kind is Kind.STUCK

    def _ended(self, status: int) -> Outcome:
        ended = time.monotonic()
        time.sleep(LAST_PULSE_S)
        self._tail.refresh()
        verdict = self._judge(None)
        failure = "" if status == 0 else f"the trainer ended with status {status}: {self._last_error('trainer')}"
        return self._outcome(verdict, time.monotonic() - ended, failure)

    def _rollout_died(self, rollout: Running) -> Outcome:
        self._tail.refresh()
        when = "before it was ready" if self._healthy_at is None else "while the trainer was running"
        failure = f"the rollout server ended with status {rollout.poll()} {when}: {self._last_error('rollout')}"
        return self._outcome(self._judge(None), 0.0, failure)

    def _check_health(self) -> None:
        if self._healthy_at is not None:
            return
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._ports.http}/health/", timeout=1):
                self._healthy_at = self._age()
        except (urllib.error.URLError, OSError):
            return

    def _check_time(self) -> None:
        log = self._dir / "logs" / "rollout.log"
        if self._healthy_at is None and self._age() > self._limits.start_s:
            evidence.collect(self._tree, self._dir)
            raise JobError(f"the rollout server was not ready after {self._limits.start_s:.0f} s; its log is {log}")
        if self._age() > self._limits.total_s:
            evidence.collect(self._tree, self._dir)
            raise JobError(f"the job was not finished after {self._limits.total_s:.0f} s; its logs are in {log.parent}")

    def _outcome(self, verdict: Verdict, to_verdict: float, failure: str) -> Outcome:
        return Outcome(verdict, failure, self._age(), to_verdict, self._healthy_at or 0.0, self._peak)

    def _age(self) -> float:
        return time.monotonic() - self._begun

    def _last_error(self, side: str) -> str:
        return evidence.last_error(self._dir / "logs", side)
