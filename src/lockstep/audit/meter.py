"""How much work following one script may take."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.audit.model import AuditError, Place, Value

MAX_STEPS = 20_000
"""Statements followed in one script; a script that needs more is made by a program, or to do harm."""
NAMES_PER_STEP = 50
"""Variables copied, looked at or merged that count as one step."""
WORDS_PER_STEP = 8
CHARACTERS_PER_STEP = 4096
PARTS_PER_STEP = 32


class Meter:
    """Counts the steps of following a script, and ends it where there are too many.

    A step is about as much work as a short command. What grows with the script (the variables that a subshell
    copies, the text of a value that was doubled sixteen times) counts by its size: else a short script could
    keep the audit busy for hours.
    """

    def __init__(self, limit: float = MAX_STEPS) -> None:
        self._limit = limit
        self.steps = 0.0
        self.place: Callable[[], Place] | None = None
        """The place that is being followed, for the message."""

    def spend(self, steps: float) -> None:
        """Count some steps. Raises AuditError where the script has used up its limit."""
        self.steps += steps
        if self.steps > self._limit:
            where = f"{self.place()}: " if self.place else ""
            raise AuditError(
                f"{where}more than {MAX_STEPS} commands to follow: expected a launch script "
                "(long values and many variables count as further commands)"
            )

    def spend_on(self, value: Value) -> None:
        """Count a value by its length and its parts."""
        size = sum(len(part.text) for part in value.parts)
        self.spend(size / CHARACTERS_PER_STEP + len(value.parts) / PARTS_PER_STEP)
