"""Lines into a Ledger, one after another, as they are read."""

from __future__ import annotations

from array import array

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


class Fold:
    """Takes the bytes of one file in any portions and keeps `ledger` up to date."""

    def __init__(self, path: str) -> None:
        self.ledger = Ledger(path)
        self._rest = b""
        self._foreign = False  # written in another version: counted, not read
        self._gap = False
        self._lost_since_mark: set[int] = set()
        self._lost_everywhere = False  # in groups not declared yet, too
        self._undeclared: set[int] = set()

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.ledger.lines += 1
            self._line(line)
        self.ledger.torn = bool(self._rest)

    def _line(self, text: bytes) -> None:
        if self._foreign:
            return
        try:
            line, unknown = parse(text)
        except UnknownKind as kind:
            self.ledger.unknown[str(kind)] += 1
            return
        except BadLine as error:
            self._problem(str(error))
            self._gap = True
            return
        self.ledger.unknown.update(f"{line.__struct_config__.tag}.{key}" for key in unknown)
        if isinstance(line, ProcessLine):
            self._process(line)
            return
        if self.ledger.lines == 1:
            self._problem("expected a process line first")
        self._other(line)

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
        groups = set(self.ledger.groups) if line.g is None else {line.g}
        self.ledger.lost |= groups
        self._lost_since_mark |= groups
        self._lost_everywhere |= line.g is None
        names = [group.name for g, group in self.ledger.groups.items() if line.g == g]
        where = f" of group {names[0]}" if names else ""
        self._problem(f"{line.records or 'some'} records{where} were overwritten before they were read")
        self._seen(line.t)

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
        if self._lost_everywhere and line.g not in self.ledger.groups:
            self.ledger.lost.add(line.g)
            self._lost_since_mark.add(line.g)
        self.ledger.groups[line.g] = Group(
            line.g, line.name, line.lib, line.backend, tuple(line.ranks), line.rank
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
        ledger.passed[line.b] = line.n
        index = len(ledger.boundaries)
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
        whole = g not in self._lost_since_mark and not self._gap
        if whole and stream is not None and sum(stream[1::2]) != mark.count - before:
            got, need = sum(stream[1::2]), mark.count - before
            self._problem(f"group {name}: {got} collectives in the stream: expected {need}, as counted")
            stream = None
        if g in self._lost_since_mark:
            stream = None
        digest = None if g in ledger.lost else mark.digest
        marks.append(Mark(mark.index, mark.count, digest, stream, mark.ops))
        ledger.tails.pop(g, None)
        self._lost_since_mark.discard(g)
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
        if not self._declared(g) or g in self._lost_since_mark or self._gap:
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
        if g not in self._undeclared:
            self._undeclared.add(g)
            self._problem(f"group number {g} is used here: expected a group line before")
        return False

    def _progressed(self, t: float) -> None:
        self.ledger.movement.progressed(t)
        self._seen(t)

    def _seen(self, t: float) -> None:
        self.ledger.last_t = max(self.ledger.last_t, t)

    def _problem(self, what: str) -> None:
        self.ledger.found.append(Problem(self.ledger.path, self.ledger.lines, what))
