"""What is known from one dump, before ranks are compared."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.record import Operation


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A group as one process knows it: its name and description, and the recorder's number for one without a
    name.
    """

    name: str
    desc: str
    number: int | None


@dataclass(slots=True)
class Open:
    """A record of a collective, or of one side of a send, that had not completed when the dump was made."""

    seq: int
    call: int
    started: bool
    created_ns: int
    at: str | None
    place: int  # of the record among all of the dump
    peer: int | None = None  # the other side's rank in the group, for a send or receive


@dataclass(slots=True, eq=False)
class Trace:
    """One group in one dump: the calls `first`, `first` + 1, ... as numbers in the table of operations,
    without a gap.
    """

    key: GroupKey
    backend: str
    seqs: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    transfers: list[Open] = field(default_factory=list)  # sends and receives
    uneven: dict[int, tuple[int, int]] = field(default_factory=dict)  # elements in and out, by number
    cut: bool = False  # calls before `first` may lack in the dump, though they were made
    last_at: str | None = None  # the line that issued the last call
    last_place: int | None = None  # and the byte where its record begins, if it has not been read in full

    @property
    def first(self) -> int:
        return self.seqs[0] if self.seqs else 1

    @property
    def last(self) -> int:
        return self.seqs[-1] if self.seqs else 0


@dataclass(slots=True)
class Dump:
    """One file. `whole` says that its ring had not yet overwritten anything."""

    path: str
    prefix: str
    rank: int
    version: str
    traces: dict[GroupKey, Trace] = field(default_factory=dict)
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of a group, by name
    records: int = 0
    whole: bool = True
    last_ns: int = 0


class Operations:
    """All calls of a set of dumps, each with a number. Calls that ranks must agree on and do have the same
    number.
    """

    def __init__(self) -> None:
        self.by_number: list[Operation] = []
        self._numbers: dict[Operation, int] = {}
        self._both: dict[tuple[int, int], int] = {}

    def number(self, operation: Operation) -> int:
        known = self._numbers.get(operation)
        if known is None:
            known = self._numbers[operation] = len(self.by_number)
            self.by_number.append(operation)
        return known

    def together(self, one: int, other: int) -> int:
        """The call that two records of one sequence number make up: operations that were coalesced."""
        known = self._both.get((one, other))
        if known is None:
            a, b = self.by_number[one], self.by_number[other]
            n = None if a.n is None or b.n is None else a.n + b.n
            dtype = a.dtype if a.dtype == b.dtype or not b.dtype else f"{a.dtype}+{b.dtype}"
            op = f"{a.op}+{b.op}" if len(a.op) + len(b.op) < 200 else f"{a.op[:180]}..."
            known = self._both[one, other] = self.number(Operation(op, dtype, n))
        return known
