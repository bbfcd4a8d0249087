"""A live line for the person who waits: which run, which side is where, for how long."""

from __future__ import annotations

import shutil
import sys
from typing import TextIO

from lockstep.record import Ledger, LedgerTail
from lockstep.report.safe_text import one_line
from lockstep.report.streams import plain

EVERY_S = 60.0
"""Where a line cannot be rewritten in place, it is printed again after this time even if nothing was
passed."""
LEAST_S = 10.0
"""And not sooner than after this time even if something was."""


class ProgressLine:
    """Rewrites one line on a terminal; elsewhere prints a new one when something was passed, or now and
    then."""

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self._name = name
        self._out = plain(out or sys.stderr)
        self._live = self._out.isatty()
        self._last = ""
        self._last_t = -EVERY_S
        self._width = shutil.get_terminal_size().columns - 1

    def __call__(self, tail: LedgerTail, age_s: float, healthy: bool) -> None:
        text = describe(tail.ledgers, healthy)
        line = one_line(f"{self._name} {age_s:4.0f} s  {text}")
        if self._live:
            self._out.write(f"\r\x1b[K{line[: self._width]}")  # one that wraps could not be rewritten
        elif age_s - self._last_t >= (LEAST_S if text != self._last else EVERY_S):
            self._last, self._last_t = text, age_s
            self._out.write(f"{line}\n")
        self._out.flush()

    def close(self) -> None:
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()


def describe(ledgers: list[Ledger], healthy: bool) -> str:
    """`rollout: generate 4 | trainer: step 3, eval begin 1`."""
    rollout = _last(ledgers, "rollout", "worker") or ("ready" if healthy else "starting")
    trainer = _last(ledgers, "trainer", "rank") or (
        "starting" if any(_is(x, "trainer", "rank") for x in ledgers) else "loading"
    )
    return f"rollout: {rollout} | trainer: {trainer}"


def _is(ledger: Ledger, side: str, role: str) -> bool:
    return ledger.process is not None and (ledger.process.side, ledger.process.role) == (side, role)


def _last(ledgers: list[Ledger], side: str, role: str) -> str:
    """The last boundary of the process that is furthest behind."""
    reached = [x.boundaries for x in ledgers if _is(x, side, role)]
    if not reached or not all(reached):
        return ""
    behind = min(reached, key=len)
    step = next((b.step for b in reversed(behind) if b.step is not None), None)
    return f"{behind[-1]}" if step is None else f"step {step}, {behind[-1]}"
