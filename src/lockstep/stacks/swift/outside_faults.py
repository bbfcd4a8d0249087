"""Faults done to a process of the job by another one, which reads its ledger to know the moment. Nothing in
the job is patched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from lockstep.env import RUN_DIR

LOOK_S = 0.001


class FromOutside(threading.Thread):
    """Waits for worker `rank` to begin its `generation`-th generation (from 1), then calls `act(watch)`
    once.
    """

    def __init__(self, run_dir: Path, rank: int, generation: int, act: Callable[[FromOutside], None]) -> None:
        super().__init__(name="lockstep-fault", daemon=True)
        self._ledgers = run_dir / "ledgers"
        self._rank, self._generation, self._act = rank, generation, act
        self.over = threading.Event()
        """Set when the job is over: the fault must leave everything alone from then on."""
        self.did: list[str] = []
        """What was done, in words, with the time since the generation began."""
        self._size, self._text = 0, ""

    def __enter__(self) -> FromOutside:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join(timeout=5)

    def run(self) -> None:
        while not self.over.wait(LOOK_S):
            if self.generations("begin") >= self._generation:
                self._act(self)
                return

    def generations(self, edge: str) -> int:
        """How often the worker's ledger says `generate begin` or `generate end`."""
        path = self._ledger("worker")
        if path is not None and (size := path.stat().st_size) != self._size:
            self._size, self._text = size, path.read_text()
        return self._text.count(f'"b":"generate {edge}"')

    def process(self, role: str) -> psutil.Process | None:
        """The process of that role and rank, if its ledger names one that lives and belongs to this run."""
        path = self._ledger(role)
        if path is None:
            return None
        try:
            process = psutil.Process(json.loads(path.read_text().partition("\n")[0])["pid"])
            ours = process.environ().get(RUN_DIR) == str(self._ledgers.parent)
        except (psutil.Error, json.JSONDecodeError):
            return None
        return process if ours else None

    def _ledger(self, role: str) -> Path | None:
        return next(self._ledgers.glob(f"rollout-{role.replace(' ', '_')}-{self._rank}-*.jsonl"), None)


def stop_worker(
    run_dir: Path, rank: int, generation: int, run_s: float, stop_s: float, times: int
) -> FromOutside:
    """From the worker's `generation`-th generation on, and in each later one until it has answered: lets it
    run for `run_s`, stops it for `stop_s`; `times` times in all.

    SIGSTOP and SIGCONT, as a debugger, a container's freezer or a machine without a free core does.
    """

    def act(watch: FromOutside) -> None:
        worker = watch.process("worker")
        while worker is not None and len(watch.did) < times and not watch.over.wait(run_s):
            number = watch.generations("begin")
            if watch.generations("end") >= number:
                continue
            with contextlib.suppress(ProcessLookupError):  # the job may be ended meanwhile
                try:
                    os.kill(worker.pid, signal.SIGSTOP)
                    watch.did.append(f"stopped for {stop_s} s in generation {number}")
                    watch.over.wait(stop_s)
                finally:
                    os.kill(worker.pid, signal.SIGCONT)

    return FromOutside(run_dir, rank, generation, act)


def kill_engine_core(run_dir: Path, rank: int, generation: int, after_s: float) -> FromOutside:
    """Kills the engine core `after_s` after its worker has begun its `generation`-th generation."""

    def act(watch: FromOutside) -> None:
        core = watch.process("engine core")
        if core is not None and not watch.over.wait(after_s):
            watch.did.append(f"engine core {rank} (pid {core.pid}) killed")
            core.kill()

    return FromOutside(run_dir, rank, generation, act)
