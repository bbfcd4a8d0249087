"""Processes of a job's services that ended while the job still needed them.

A server need not look for its own workers once it is ready: it then waits for a dead one without end.
"""

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

    def __init__(self, side: str, commands: Sequence[str]) -> None:
        """`side` is that of the services in their ledgers; `commands` are the names they were started by."""
        self._side, self._commands = side, frozenset(commands)
        self._looks: dict[int, int] = {}
        self._lost: dict[int, Loss] = {}

    def look(self, processes: Sequence[ProcessInfo], ledgers: Sequence[Ledger], now: float) -> list[Loss]:
        """Everything lost so far. `now` is in seconds since the epoch."""
        live = {p.pid: p for p in processes if p.command in self._commands and p.state != "zombie"}
        recorded = {x.process.pid: x for x in ledgers if x.process and x.process.side == self._side}
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
