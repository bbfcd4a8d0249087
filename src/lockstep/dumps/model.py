"""What is known from one dump, before ranks are compared."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from lockstep import flight_records
from lockstep.record import Operation

from .errors import DumpError


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

    While the dump is read, `seqs` has the number of each of `calls`; it is empty once `first` is known.
    """

    key: GroupKey
    backend: str
    seqs: array[int] = field(default_factory=lambda: array("q"))
    calls: array[int] = field(default_factory=lambda: array("I"))
    first: int = 1
    open: list[Open] = field(default_factory=list)
    transfers: list[Open] = field(default_factory=list)  # sends and receives
    uneven: dict[int, tuple[int, int]] = field(default_factory=dict)  # elements in and out, by number
    cut: bool = False  # calls before `first` may lack in the dump, though they were made
    last_at: str | None = None  # the line that issued the last call
    last_place: int | None = None  # and the byte where its record begins, if it has not been read in full

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1 if self.calls else 0

    @property
    def told(self) -> bool:
        """Whether any record of the group was read."""
        return bool(self.calls or self.transfers)


@dataclass(slots=True)
class Dump:
    """One file. `whole` says that its ring had not yet overwritten anything.

    `damage` is what is wrong with the file: then only the records before it are here.
    """

    path: str
    prefix: str
    rank: int
    version: str
    traces: dict[GroupKey, Trace] = field(default_factory=dict)
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of a group, by name
    records: int = 0
    whole: bool = True
    last_ns: int = 0
    damage: DumpError | None = None


class RankLists:
    """The rank lists of a set of dumps, each once: every dump of a job repeats those of its groups."""

    def __init__(self) -> None:
        self.by_text: dict[str, tuple[int, ...]] = {}
        self.total = 0
        """Ranks in all of them."""
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def once(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the one tuple that stands for these ranks: equal lists are the same object."""
        known = self._known.setdefault(ranks, ranks)
        self.total += len(ranks) if known is ranks else 0
        return known


class Operations:
    """All calls of a set of dumps, each with a number, and its rank lists. Calls that ranks must agree on and
    do have the same number.
    """

    def __init__(self) -> None:
        self.by_number: list[Operation] = []
        self.ranks = RankLists()
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
            made = flight_records.together((a.op, a.dtype, a.n), (b.op, b.dtype, b.n))
            known = self._both[one, other] = self.number(Operation(*made))
        return known
