"""One line of time for all ledgers of a job, which no setting of a clock moves."""

from __future__ import annotations

import time

from lockstep.clock import clock_id

from .format import Line, ProcessLine

STEP_S = 1.0
"""A clock that moves by more than this against the monotonic one, between two lines, was set."""


class Timeline:
    """Turns monotonic times into seconds since the epoch, with one offset for each monotonic clock.

    The offset is what the first process seen with that clock had at its start. So times of one machine can be
    compared whatever became of its wall clock; between machines they are as good as the wall clocks were
    then.
    """

    def __init__(self) -> None:
        self._offsets: dict[str, float] = {}

    def offset(self, process: ProcessLine) -> float | None:
        """Return what turns the monotonic times of this process into seconds since the epoch, None where it
        writes none.
        """
        if process.m is None:
            return None
        clock = process.clock or f"{process.host} {process.pid}"
        return self._offsets.setdefault(clock, process.t - process.m)

    def now(self) -> float:
        """Return the time now on this line, as the processes of this machine would write it."""
        offset = self._offsets.get(clock_id())
        return time.time() if offset is None else time.monotonic() + offset


class Clock:
    """The clock of one process: places its lines on the timeline, and notes when its wall clock was set."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._offset: float | None = None
        self._last: float | None = None  # wall time less monotonic time, or wall time where there is no other

    def start(self, process: ProcessLine) -> None:
        self._offset = self._timeline.offset(process)

    def place(self, line: Line) -> float | None:
        """Return the line's time on the timeline; None where its own wall time is all there is."""
        return None if self._offset is None or line.m is None else line.m + self._offset

    def step(self, line: Line, t: float) -> float:
        """Return by how many seconds the wall clock was set since the line before, 0 if it was not.

        Without monotonic times only a clock that was set back is seen, and only in lines that are written at
        once: give no others.
        """
        monotonic = line.m
        now = t - monotonic if monotonic is not None else t
        last, self._last = self._last, now
        if last is None:
            return 0.0
        moved = now - last
        if monotonic is None:
            return moved if moved < -STEP_S else 0.0
        return moved if abs(moved) > STEP_S else 0.0
