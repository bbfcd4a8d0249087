"""Since when nothing in the job has moved, and whether the pulses prove it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.record import SILENT_S, Ledger

PASSES = ("sleep", "file")  # what a main thread may be parked in and yet end by itself


@dataclass(frozen=True)
class Window:
    """A time in which no process moved; every process that was not silent has a pulse at or after `end`."""

    start: float
    end: float

    @property
    def length(self) -> float:
        return max(0.0, self.end - self.start)


def silent_for(ledger: Ledger, now: float) -> float | None:
    """Seconds without a line, where that is too long for a living process; None for one that has ended."""
    quiet = now - ledger.last_t
    return quiet if ledger.ended is None and quiet >= SILENT_S else None


def unseen(ledgers: Sequence[Ledger], window: Window, settle_s: float) -> list[Ledger]:
    """Processes that have not ended and whose pulses do not reach `settle_s` into the window.

    They may have moved all the while: starved, stopped, or gone.
    """
    return [x for x in ledgers if x.ended is None and x.last_t < window.start + settle_s]


def still(ledgers: Sequence[Ledger], now: float) -> Window:
    """The time from the last movement in any process to the last moment that the pulses of all living ones
    cover.

    Silent and ended processes do not move. A process that waits in a collective moves when its counts do: it
    may spin.
    """
    return _windows(ledgers, now)[-1]


def last_still(ledgers: Sequence[Ledger], now: float, settle_s: float) -> Window:
    """The last time of at least `settle_s` without movement after which no count, boundary or beat has
    changed.

    What runs after such a time, in a job that is over, is its being torn down. The last window of all if none
    is long enough.
    """
    windows = _windows(ledgers, now)
    return next((w for w in reversed(windows) if w.length >= settle_s), windows[-1])


def _windows(ledgers: Sequence[Ledger], now: float) -> list[Window]:
    start = max((ledger.movement.progress for ledger in ledgers), default=now)
    start = now if math.isinf(start) else start
    covered = min((x.last_t for x in ledgers if x.ended is None and silent_for(x, now) is None), default=now)
    busy = sorted((b.start, b.end) for ledger in ledgers for b in ledger.movement.busy if b.end > start)
    windows = []
    for begin, end in busy:
        windows.append(Window(start, min(begin, covered)))
        start = max(start, end)
    return [*windows, Window(start, covered)]
