"""The rollout server of the job alone, without a trainer: started, asked, watched by its ledgers, ended."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from lockstep.record import LedgerTail
from lockstep.run import evidence, scratch
from lockstep.run.counted import silent
from lockstep.run.health import is_healthy
from lockstep.run.lost_processes import Losses
from lockstep.run.port_ownership import Claims
from lockstep.run.ports import free_ports, release_ports
from lockstep.run.process_tree import Command, ProcessTree
from lockstep.run.supervise import Limits
from lockstep.stacks.base import HOST, Job
from lockstep.verdict import Kind, Verdict, judge

POLL_S = 0.5
COUNTED_S = 15.0
"""Longest wait for counts of what the first round issued: processes write them every two seconds at least."""
GRACE_S = 1.0
"""From SIGTERM to SIGKILL. The server waits for its workers in its only thread: it seldom hears the first."""


class RolloutError(RuntimeError):
    """The rollout cannot serve; names the reason, and its log."""


class Rollout:
    """A running server. Leaving the `with` block ends all its processes."""

    def __init__(self, spec: Job, run_dir: Path, tree: ProcessTree, limits: Limits) -> None:
        """`run_dir` must be new; `tree` must be open."""
        self._spec, self.run_dir, self._tree, self._limits = spec, run_dir, tree, limits
        self._tail = LedgerTail(run_dir)
        self._losses = Losses(spec.stack.service, ["rollout"])
        self._command: Command | None = None
        self._ports: list[int] = []
        self._scratch = scratch.scratch(run_dir)
        self.port, self._port_name = 0, ""
        self.workers: list[psutil.Process] = []
        """The processes that add requests, by rank."""

    def __enter__(self) -> Rollout:
        """Returns when the server answers its health check. Raises RolloutError, StartError."""
        for room in ("ledgers", "logs", "evidence"):
            (self.run_dir / room).mkdir(parents=True)
        folder = self._scratch.__enter__()
        try:
            self._ports = free_ports(self._spec.ports_needed(), HOST)
            service = self._spec.launch(self._ports, self.run_dir).services[0]
            command, self.port, self._port_name = service.command, service.port, service.port_name
            env = command.env | scratch.environment(folder, self._spec.cache, self._spec.stack.folders)
            log = self.run_dir / "logs" / "rollout.log"
            self._command = self._tree.start("rollout", command.argv, env=env, cwd=self.run_dir, log=log)
            self._await_health()
            self.workers = self._find_workers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._command is not None:
            self._tree.stop(self._command, GRACE_S)
        release_ports(self._ports)
        self._scratch.__exit__(None, None, None)

    def look(self) -> Verdict:
        """What the ledgers say now. Raises RolloutError when a process is gone that the server needs."""
        self._tail.refresh()
        lost = self._losses.look(self._tree.pids(), self._tail.ledgers, self._tail.now())
        for loss in lost:
            raise RolloutError(f"the {loss.label or 'worker'} (pid {loss.pid}) ended: {self._why()}")
        self._check_alive()
        return judge(
            self._tail.ledgers,
            settle_s=self._limits.settle_s,
            now=self._tail.now(),
            names=self._spec.stack.names,
        )

    def await_counted(self) -> None:
        """Returns when the groups in which the engines keep step have counted. Raises RolloutError when they
        do not: of engines that the probe does not see no hang can be told."""
        until = time.monotonic() + COUNTED_S
        while told := silent(self._spec.service_groups(), self._tail.ledgers):
            if time.monotonic() >= until:
                raise RolloutError(told)
            time.sleep(POLL_S)
            self._tail.refresh()

    def collect(self) -> None:
        """Saves stacks and flight recorder entries of all processes in `run_dir/evidence`."""
        evidence.collect(self._tree, self.run_dir)

    @staticmethod
    def is_hang(verdict: Verdict) -> bool:
        return verdict.kind is Kind.STUCK

    def _await_health(self) -> None:
        name = self._port_name
        claims = Claims(HOST, {name: self.port})
        begun = time.monotonic()
        while True:
            time.sleep(POLL_S)
            self._check_alive()
            if taken := claims.stranger(lambda: [process.pid for process in self._tree.pids()]):
                raise RolloutError(taken)
            if claims.claimed(name) and is_healthy(self.port):
                return
            if time.monotonic() - begun >= self._limits.start_s:
                log = self.run_dir / "logs" / "rollout.log"
                raise RolloutError(f"not ready after {self._limits.start_s:.0f} s; its log is {log}")

    def _check_alive(self) -> None:
        if self._command is not None and (status := self._command.poll()) is not None:
            raise RolloutError(f"the server ended with status {status}: {self._why()}")

    def _find_workers(self) -> list[psutil.Process]:
        self._tail.refresh()
        own = {process.pid for process in self._tree.pids()}
        found = [x.process for x in self._tail.ledgers if x.process and x.process.role == "worker"]
        return [psutil.Process(x.pid) for x in sorted(found, key=lambda x: x.rank) if x.pid in own]

    def _why(self) -> str:
        return evidence.last_error(self.run_dir / "logs", "rollout")
