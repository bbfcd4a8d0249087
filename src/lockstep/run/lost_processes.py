"""Processes of the rollout that ended while the job still needed them. ms-swift 3.10.3 does not look for them
once its server is ready: a dead worker is waited for, a dead engine's answer is None."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.record import Ledger
from lockstep.run.process_tree import ProcessInfo

_CHILD = "--multiprocessing-fork"
"""Argument of every process that Python's `multiprocessing` spawned, and so of workers; engines are forked
from them."""


@dataclass(frozen=True)
class Loss:
    """A process that is gone; `label` is empty where it had no ledger yet, `by_itself` says that it ended its
    ledger."""

    pid: int
    label: str
    by_itself: bool
    t: float


class Losses:
    """To be shown the job's processes about once a second."""

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}
        self._lost: dict[int, Loss] = {}

    def look(self, processes: Sequence[ProcessInfo], ledgers: Sequence[Ledger], now: float) -> list[Loss]:
        """Everything lost so far. `now` is in seconds since the epoch."""
        live = {p.pid: p for p in processes if p.command == "rollout" and p.state != "zombie"}
        recorded = {x.process.pid: x for x in ledgers if x.process and x.process.side == "rollout"}
        for pid, process in live.items():
            if pid in recorded or _CHILD in process.cmdline:
                self._looks[pid] = self._looks.get(pid, 0) + 1
        for pid, looks in list(self._looks.items()):
            if pid in live:
                continue
            del self._looks[pid]
            ledger = recorded.get(pid)
            # Seen only once and without a ledger: a short-lived child on its way to exec.
            if ledger or looks > 1:
                self._lost[pid] = Loss(
                    pid, ledger.label if ledger else "", bool(ledger and ledger.ended), now
                )
        return list(self._lost.values())
