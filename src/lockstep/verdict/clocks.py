"""Clocks that were set while the job ran, or that differ between its processes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lockstep.record import SILENT_S, Ledger

_TOGETHER = ("step", "wave end")
"""Boundaries that ranks pass together: they have just exchanged something."""
_BOUNDARIES = 64  # the last ones are looked at
_LEAST = 2


def notes(ledgers: Sequence[Ledger]) -> tuple[tuple[str, ...], bool]:
    """Return a sentence for each thing that is wrong with a clock, and whether the times of different
    processes cannot be compared for it.
    """
    texts = []
    apart = False
    for ledger in ledgers:
        if steps := ledger.clock_steps:
            steady = ledger.process is not None and ledger.process.m is not None
            apart = apart or not steady
            times = "once" if len(steps) == 1 else f"{len(steps)} times"
            text = f"{ledger.label}: its clock was set {times}, by {sum(steps):+.0f} s in all"
            texts.append(text if steady else f"{text}: nothing is said of who was gone first")
    firsts: dict[tuple[str, str], Ledger] = {}
    for ledger in ledgers:
        if ledger.process is None:
            continue
        first = firsts.setdefault((ledger.process.side, ledger.process.role), ledger)
        if first is not ledger and not _one_clock(first, ledger) and (by := _differ(first, ledger)):
            apart = True
            ahead, behind = (ledger, first) if by > 0 else (first, ledger)
            texts.append(
                f"{ahead.label}: its clock is about {abs(by):.0f} s ahead of that of {behind.label}: "
                "nothing is said of who was gone first"
            )
    return tuple(texts), apart


def _one_clock(a: Ledger, b: Ledger) -> bool:
    """Whether the times of both count on one monotonic clock."""
    assert a.process is not None
    assert b.process is not None
    steady = a.process.m is not None and b.process.m is not None
    return steady and a.process.clock != "" and a.process.clock == b.process.clock


def _differ(a: Ledger, b: Ledger) -> float:
    """Seconds by which the clock of `b` is ahead, by the boundaries that both have passed last; 0 where they
    do not show that the clocks differ.
    """
    passed = {(x.name, x.n): x.t for x in a.boundaries[-_BOUNDARIES:] if x.name in _TOGETHER}
    late = [x.t - passed[x.name, x.n] for x in b.boundaries[-_BOUNDARIES:] if (x.name, x.n) in passed]
    if len(late) < _LEAST or min(map(abs, late)) < SILENT_S or min(late) < 0.0 < max(late):
        return 0.0
    return median(late)
