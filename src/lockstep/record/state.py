"""What is known of one process from its ledger: plain data, filled by `fold`, read by the verdict."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .format import ProcessLine, Pulse, Waiting

PULSE_S = 2.0  # a living process writes a pulse at least this often
SILENT_S = 2.5 * PULSE_S  # without a line for this long, it is not known what a process does
CPU_SHARE = 0.2  # of a core: a main thread that uses or waits for more between two pulses runs
_BUSY_KEPT = 8


class LedgerError(Exception):
    """Ledgers cannot be read at all: a path does not exist, is not readable, or holds no ledger."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a ledger from being whole. `line` counts from 1, None where none is at fault."""

    file: str | None
    line: int | None
    what: str
    torn: bool = False  # only the end of the file is missing

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return f"{place}: {self.what}" if place else self.what


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective as ranks must agree on it; `n` counts elements, None where they need not agree on it."""

    op: str
    dtype: str
    n: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as one process sees it; `rank` is this process's place in `ranks`.

    `id` is what all its ranks call it; where it is empty, as in ledgers of older releases, the name tells
    groups with the same ranks apart.
    """

    g: int
    name: str
    lib: str
    backend: str
    ranks: tuple[int, ...]
    rank: int
    id: str = ""

    @property
    def purpose(self) -> str:
        """Its name, without the number that tells it from others of this process."""
        return self.name.partition("#")[0] if self.id else self.name


@dataclass(frozen=True, slots=True)
class Boundary:
    name: str
    n: int
    step: int | None
    t: float

    def __str__(self) -> str:
        return f"{self.name} {self.n}"


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a group's count stood at a boundary (`index` in Ledger.boundaries), when it had moved.

    What was issued between the last boundary and the end of the process has the index after the last one.

    `digest` is None once records were lost. `stream` is flat, `op id, repeats, op id, repeats ...`, of what
    was issued since the last boundary; it ends at `count`. None where it was left out.
    """

    index: int
    count: int
    digest: str | None
    stream: array[int] | None
    ops: dict[str, int]


@dataclass(frozen=True, slots=True)
class Busy:
    """A time in which a process ran without its counts moving; `before` is the pulse that came before it."""

    start: float
    end: float
    before: Pulse


@dataclass(slots=True)
class Movement:
    """When a process last moved, worked out pulse by pulse so that pulses need not be kept.

    `progress` is the time of the last change of a count, a boundary or a beat. `busy` are the times since
    then in which the main thread ran; the oldest are merged (which only ever claims more running than there
    was).
    """

    progress: float = -math.inf
    busy: list[Busy] = field(default_factory=list)

    def progressed(self, t: float) -> None:
        self.progress = max(self.progress, t)
        self.busy.clear()

    def pulsed(self, before: Pulse | None, pulse: Pulse) -> None:
        if before is None or _issued(pulse) != _issued(before) or pulse.beat != before.beat:
            self.progressed(pulse.t)
        elif pulse.w is None and (
            # A wait may end without a count or a line of code that tells: where the peer is gone, say.
            before.w is not None or pulse.at != before.at or _ran(before, pulse) or _unseen(before, pulse)
        ):
            self._ran_in(Busy(before.t, pulse.t, before))

    def _ran_in(self, busy: Busy) -> None:
        if self.busy and self.busy[-1].end >= busy.start:
            self.busy[-1] = Busy(self.busy[-1].start, busy.end, self.busy[-1].before)
        else:
            self.busy.append(busy)
        if len(self.busy) > _BUSY_KEPT:
            first, second = self.busy[:2]
            self.busy[:2] = [Busy(first.start, second.end, first.before)]


def _issued(pulse: Pulse) -> dict[int, int]:
    """Counts of what was issued. A completion alone is no progress: it follows from what a peer has issued,
    or the collective failed because the peer is gone.
    """
    return {g: pair[0] for g, pair in pulse.c.items()}


def _ran(before: Pulse, pulse: Pulse) -> bool:
    if pulse.cpu is None or before.cpu is None:
        return False
    queued = (pulse.queued or 0.0) - (before.queued or 0.0)
    return pulse.cpu - before.cpu + queued > CPU_SHARE * max(pulse.t - before.t, 0.0)


def _unseen(before: Pulse, pulse: Pulse) -> bool:
    """Whether a process got no time for its pulses, and so none to move: that proves nothing of it."""
    return pulse.t - before.t >= SILENT_S


@dataclass(slots=True)
class Ledger:
    """One process of the job. Counts are kept by `g`, the group's number in this file."""

    path: str
    process: ProcessLine | None = None
    groups: dict[int, Group] = field(default_factory=dict)
    ops: dict[int, Operation] = field(default_factory=dict)
    boundaries: list[Boundary] = field(default_factory=list)
    passed: dict[str, int] = field(default_factory=dict)  # boundaries passed, by name
    places: dict[str, list[int]] = field(default_factory=dict)  # by name, indices in `boundaries`
    marks: dict[int, list[Mark]] = field(default_factory=dict)
    gaps: set[int] = field(
        default_factory=set
    )  # indices of boundaries with an unreadable line right before them
    pulse: Pulse | None = None  # the last one
    tails: dict[int, Mark] = field(
        default_factory=dict
    )  # what a group has issued since its last mark, as a pulse told it
    issued: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    issued_since: dict[int, float] = field(
        default_factory=dict
    )  # when `issued` was first seen at its last value
    movement: Movement = field(default_factory=Movement)
    last_t: float = -math.inf
    ended: float | None = None
    ended_by: str | None = None  # the signal that ended it
    lost: set[int] = field(default_factory=set)
    unknown: Counter[str] = field(default_factory=Counter)  # kinds, and keys as kind.key, that were skipped
    clock_steps: list[float] = field(default_factory=list)  # seconds by which its wall clock was set
    lines: int = 0
    torn: int = 0  # bytes that follow the last newline
    found: list[Problem] = field(default_factory=list)
    disorder: Problem | None = None  # the first place at which lines are missing, added or swapped

    @property
    def usable(self) -> bool:
        return self.process is not None

    @property
    def problems(self) -> list[Problem]:
        """All that is wrong with the file as it is now. A torn end may be a line still being written."""
        problems = list(self.found)
        if not self.lines and not self.torn:
            problems.append(Problem(self.path, None, "empty file: expected a process line"))
        elif self.process is None and not self.found:
            problems.append(Problem(self.path, 1, "expected a process line first"))
        if self.torn:
            what = "torn last line: expected a newline at its end"
            problems.append(Problem(self.path, self.lines + 1, what, torn=True))
        return problems

    @property
    def label(self) -> str:
        """Such as `rollout engine core 1`; the path where there is no process line."""
        if self.process is None:
            return self.path
        return f"{self.process.side} {self.process.role} {self.process.rank}"

    def pulse_at(self, t: float) -> Pulse | None:
        """The pulse that was the last one before anything ran after `t`; the last one if nothing did."""
        return next((busy.before for busy in self.movement.busy if busy.start >= t), self.pulse)

    def waiting_at(self, t: float) -> Waiting | None:
        """The collective in which this process waits, by its pulses; a boundary after the pulse ends the
        wait.
        """
        pulse = self.pulse_at(t)
        if pulse is None or (self.boundaries and self.boundaries[-1].t > pulse.t):
            return None
        return pulse.w


def compact(pairs: Iterable[tuple[int, int]]) -> array[int]:
    """`[op id, repeats]` pairs as `Mark.stream` has them."""
    return array("q", [number for pair in pairs for number in pair])
