"""Lines into a Ledger, one after another, as they are read."""

from __future__ import annotations

from array import array
from typing import TypeVar

import msgspec

from .format import (
    VERSION,
    BadLine,
    BoundaryLine,
    EndLine,
    ErrorLine,
    GroupLine,
    Line,
    LostLine,
    OpLine,
    ProcessLine,
    Pulse,
    UnknownKind,
    parse,
)
from .state import Boundary, Group, Ledger, Mark, Operation, Problem, compact
from .timeline import Clock, Timeline

LINE_BYTES = 16 << 20
"""A line that is longer is not read. The longest that a probe writes declares a group: 8 bytes a rank."""
GROUPS_KEPT = 10_000
"""Of one process; groups after them are left out, and what is said of them."""
BOUNDARY_NAMES = 64
"""Names of boundaries in one file; docs/ledger.md has 15."""
PROBLEMS_KEPT = 1000
"""Of one file; what comes after them is left out."""

_Timed = TypeVar("_Timed", bound=Line)


class Fold:
    """Takes the bytes of one file in any portions and keeps `ledger` up to date."""

    def __init__(self, path: str, timeline: Timeline | None = None) -> None:
        self.ledger = Ledger(path)
        self._clock = Clock(timeline or Timeline())
        self._parts: list[bytes] = []  # of a line without its end
        self._length = 0
        self._foreign = False  # written in another version: counted, not read
        self._gap = False
        self._lost_since_mark: set[int] = set()
        self._lost_everywhere = False  # in groups not declared yet, too
        self._marked_since: set[int] = set()  # groups with a mark since then
        self._undeclared: set[int] = set()
        self._number = 1  # of the next line, where lines have numbers
        self._numbered = False
        self._left_out = False  # groups

    def feed(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(line)
            self.ledger.lines += 1
            if self._length > LINE_BYTES:
                self._too_long(self._length)
            else:
                self._line(b"".join(self._parts))
            self._parts.clear()
            self._length = 0
        self._take(rest)
        self.ledger.torn = self._length

    def _take(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= LINE_BYTES:
            self._parts.append(part)
        else:
            self._parts.clear()

    def _too_long(self, length: int) -> None:
        self._number += 1
        self._problem(f"a line of {length} bytes: expected at most {LINE_BYTES}")
        self._gap = True

    def _line(self, text: bytes) -> None:
        if self._foreign:
            return
        try:
            line, unknown = parse(text)
        except UnknownKind as kind:
            self._in_order(kind.i)
            self.ledger.unknown[str(kind)] += 1
            return
        except BadLine as error:
            self._number += 1
            self._problem(str(error))
            self._gap = True
            return
        self._in_order(line.i)
        self.ledger.unknown.update(f"{line.__struct_config__.tag}.{key}" for key in unknown)
        if isinstance(line, ProcessLine):
            self._process(self._timed(line))
            return
        if self.ledger.lines == 1:
            self._problem("expected a process line first")
        self._other(self._timed(line))

    def _in_order(self, i: int | None) -> None:
        """Notes where lines are missing, added or swapped: nothing is claimed of such a file."""
        expected, self._number = self._number, (self._number if i is None else i) + 1
        if i is None and not self._numbered:
            return
        self._numbered = True
        if i != expected:
            number = "no number" if i is None else f"number {i}"
            self._problem(f"{number}: expected number {expected}: lines are missing or not in their order")
            self._gap = True
            self.ledger.disorder = self.ledger.disorder or self.ledger.found[-1]

    def _timed(self, line: _Timed) -> _Timed:
        """The line with its time as the job's timeline has it; notes a clock that was set."""
        t = getattr(line, "t", None)
        if t is None:
            return line
        if isinstance(line, ProcessLine) and self.ledger.process is None:
            self._clock.start(line)
        # A boundary is written later than it was passed: without a monotonic clock its time may go back.
        if line.m is not None or isinstance(line, (ProcessLine, Pulse)):
            self.ledger.clock_steps += [step] if (step := self._clock.step(line, t)) else []
        placed = self._clock.place(line)
        return line if placed is None else msgspec.structs.replace(line, t=max(placed, 0.0))

    def _other(self, line: Line) -> None:
        ledger = self.ledger
        if isinstance(line, Pulse):
            self._pulse(line)
        elif isinstance(line, BoundaryLine):
            self._boundary(line)
        elif isinstance(line, OpLine):
            ledger.ops[line.id] = Operation(line.op, line.dtype, line.n)
        elif isinstance(line, GroupLine):
            self._group(line)
        elif isinstance(line, LostLine):
            self._lost(line)
        elif isinstance(line, ErrorLine):
            self._problem(f"the probe failed: {line.what}")
            self._seen(line.t)
        elif isinstance(line, EndLine):
            ledger.ended, ledger.ended_by = line.t, line.by
            self._marks(line, len(ledger.boundaries))
            self._seen(line.t)

    def _lost(self, line: LostLine) -> None:
        ledger = self.ledger
        if line.g is None:
            if not self._lost_everywhere:
                ledger.lost.update(ledger.groups)
            self._lost_everywhere = True
            self._marked_since.clear()
        else:
            ledger.lost.add(line.g)
            self._lost_since_mark.add(line.g)
        group = ledger.groups.get(line.g) if line.g is not None else None
        where = f" of group {group.name}" if group else ""
        self._problem(f"{line.records or 'some'} records{where} were overwritten before they were read")
        self._seen(line.t)

    def _holed(self, g: int) -> bool:
        """Whether records of a group were lost since its last mark."""
        return g in self._lost_since_mark or (self._lost_everywhere and g not in self._marked_since)

    def _process(self, line: ProcessLine) -> None:
        if line.v != VERSION:
            self._problem(f"version {line.v}: expected {VERSION}")
            self._foreign = True
        elif self.ledger.process is not None:
            self._problem("a second process line: expected one, at the start")
        else:
            if self.ledger.lines > 1:
                self._problem("a process line in the middle: expected it first")
            self.ledger.process = line
            self._progressed(line.t)

    def _group(self, line: GroupLine) -> None:
        if line.rank >= len(line.ranks):
            self._problem(f"group {line.name}: rank {line.rank} of {len(line.ranks)}: expected less")
            return
        known = self.ledger.groups
        if len(known) >= GROUPS_KEPT and line.g not in known:
            if not self._left_out:
                self._problem(
                    f"group {line.name}: expected at most {GROUPS_KEPT} groups: the rest is left out"
                )
            self._left_out = True
            return
        if self._lost_everywhere and line.g not in known:
            self.ledger.lost.add(line.g)
        self.ledger.groups[line.g] = Group(
            line.g, line.name, line.lib, line.backend, tuple(line.ranks), line.rank, line.id
        )
        self._progressed(line.t)

    def _boundary(self, line: BoundaryLine) -> None:
        ledger = self.ledger
        before = ledger.passed.get(line.b, 0)
        if line.n != before + 1:
            self._problem(f"boundary {line.b} {line.n}: expected {line.b} {before + 1}")
            self._gap = True
            if line.n <= before:
                return
        if not before and len(ledger.passed) >= BOUNDARY_NAMES:
            self._problem(f"boundary {line.b}: expected at most {BOUNDARY_NAMES} names: it is left out")
            self._gap = True
            return
        ledger.passed[line.b] = line.n
        index = len(ledger.boundaries)
        ledger.places.setdefault(line.b, []).append(index)
        ledger.boundaries.append(Boundary(line.b, line.n, line.step, line.t))
        if self._gap:
            ledger.gaps.add(index)
        self._marks(line, index)
        self._gap = False
        self._progressed(line.t)

    def _marks(self, line: BoundaryLine | EndLine, index: int) -> None:
        for g, (count, digest, ops) in line.c.items():
            stream = compact(line.s[g]) if g in line.s else None
            self._mark(line, Mark(index, count, digest, stream, ops), g)

    def _mark(self, line: BoundaryLine | EndLine, mark: Mark, g: int) -> None:
        if not self._declared(g):
            return
        ledger = self.ledger
        marks = ledger.marks.setdefault(g, [])
        before = marks[-1].count if marks else 0
        name = ledger.groups[g].name
        if mark.count < before:
            self._problem(f"group {name}: count {mark.count}: expected at least {before}")
            return
        stream = mark.stream
        whole = not self._holed(g) and not self._gap
        if whole and stream is not None and sum(stream[1::2]) != mark.count - before:
            got, need = sum(stream[1::2]), mark.count - before
            self._problem(f"group {name}: {got} collectives in the stream: expected {need}, as counted")
            stream = None
        if self._holed(g):
            stream = None
        digest = None if g in ledger.lost else mark.digest
        marks.append(Mark(mark.index, mark.count, digest, stream, mark.ops))
        ledger.tails.pop(g, None)
        self._lost_since_mark.discard(g)
        self._marked_since.add(g)
        self._issued(g, mark.count, line.t)

    def _pulse(self, pulse: Pulse) -> None:
        ledger = self.ledger
        for g, (issued, completed) in pulse.c.items():
            if self._declared(g):
                self._issued(g, issued, pulse.t)
                ledger.completed[g] = completed
        for g, (count, pairs) in pulse.s.items():
            self._tail(g, count, compact(pairs))
        ledger.movement.pulsed(ledger.pulse, pulse)
        ledger.pulse = pulse
        self._seen(pulse.t)

    def _tail(self, g: int, count: int, stream: array[int]) -> None:
        """What a pulse tells of a group since its last mark: nothing where a line between them is missing."""
        if not self._declared(g) or self._holed(g) or self._gap:
            return
        marks = self.ledger.marks.get(g)
        before = marks[-1].count if marks else 0
        if sum(stream[1::2]) != count - before:
            got, need, name = sum(stream[1::2]), count - before, self.ledger.groups[g].name
            self._problem(f"group {name}: {got} collectives in a pulse's stream: expected {need}, as counted")
            return
        self.ledger.tails[g] = Mark(len(self.ledger.boundaries), count, None, stream, {})

    def _issued(self, g: int, count: int, t: float) -> None:
        # A pulse and a boundary are written by two threads: the smaller of two counts is the older one.
        if count > self.ledger.issued.get(g, 0):
            self.ledger.issued[g] = count
            self.ledger.issued_since[g] = t

    def _declared(self, g: int) -> bool:
        if g in self.ledger.groups:
            return True
        if g not in self._undeclared and not self._left_out:
            self._undeclared.add(g)
            self._problem(f"group number {g} is used here: expected a group line before")
        return False

    def _progressed(self, t: float) -> None:
        self.ledger.movement.progressed(t)
        self._seen(t)

    def _seen(self, t: float) -> None:
        self.ledger.last_t = max(self.ledger.last_t, t)

    def _problem(self, what: str) -> None:
        found = self.ledger.found
        if len(found) > PROBLEMS_KEPT:
            return
        if len(found) == PROBLEMS_KEPT:
            what = f"{what}; what else is wrong from here on is left out"
        found.append(Problem(self.ledger.path, self.ledger.lines, what))
