"""Events -> what happened: which ranks of which group waited for what, and which failure came first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeVar

from lockstep.diagnose.events import Event, GroupLabel, Mark, Status, Timeout

_E = TypeVar("_E", bound=Event)
_SAME_MOMENT = 120.0  # seconds between the lines that one rank's watchdog writes about one failure
_DAY = 86_400.0
_YEAR = 365 * _DAY
_ONE_HANG = 2 * _DAY  # more than time zones (26 hours) and the watchdogs of one hang (a few hours) come to


@dataclass
class Member:
    """One rank of a group. `rank` is its place in the group, `world_rank` its rank in its half of the job, if
    told.
    """

    rank: int
    world_rank: int | None = None
    timeouts: list[Timeout] = field(default_factory=list)
    status: Status | None = None
    process: str | None = None

    @property
    def first(self) -> Timeout | None:
        """The collective that it waited in: the lowest number that ran out of time."""
        return min(self.timeouts, key=lambda timeout: timeout.seq, default=None)

    @property
    def waits(self) -> bool:
        return bool(self.timeouts)


@dataclass
class Group:
    """A group in which a collective ran out of time. `label` is None where torch is too old to print it."""

    label: GroupLabel | None
    members: dict[int, Member] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(sorted(rank for rank, member in self.members.items() if member.waits))

    @property
    def timeouts(self) -> list[Timeout]:
        found = [t for member in self.members.values() for t in member.timeouts]
        return sorted(found, key=lambda timeout: (timeout.file, timeout.line))

    @property
    def seq(self) -> int:
        """The first number at which anybody waits."""
        return min(timeout.seq for timeout in self.timeouts)

    def at(self, seq: int) -> list[Timeout]:
        """One timeout per rank at this number."""
        found = {t.rank: t for t in reversed(self.timeouts) if t.seq == seq}
        return [found[rank] for rank in sorted(found, key=lambda rank: -1 if rank is None else rank)]


@dataclass
class Picture:
    """`first` is the first failure that the logs tell of, None where times and lines cannot say which it
    was.
    """

    groups: list[Group]
    marks: list[Mark]
    first: Event | None
    ranks: dict[str, set[int]]  # per file, the global ranks that wrote in it
    statuses: list[Status]

    def of(self, *kinds: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.kind in kinds]

    @property
    def first_timeout(self) -> Timeout | None:
        return _earliest([t for group in self.groups for t in group.timeouts])

    @property
    def apart(self) -> tuple[Timeout, Timeout, int] | None:
        """Timeouts of two logs that cannot be of one hang, and how many days lie between them; None if all
        can.

        They are the last one of a log and the first one of another: a log may have those of earlier runs too.
        """
        dated: dict[str, list[tuple[float, Timeout]]] = defaultdict(list)
        for timeout in (t for group in self.groups for t in group.timeouts):
            if timeout.origin.when is not None:
                dated[timeout.file].append((timeout.origin.when, timeout))
        if not dated:
            return None
        end, last = min((max(found, key=itemgetter(0)) for found in dated.values()), key=itemgetter(0))
        begin, first = max((min(found, key=itemgetter(0)) for found in dated.values()), key=itemgetter(0))
        gap = min(begin - end, _YEAR - (begin - end))  # the year, which no log tells, may have turned
        return (last, first, int(gap / _DAY)) if gap > _ONE_HANG else None


def before(one: Event, other: Event) -> bool | None:
    """Whether one line was written before another; None if the logs do not say."""
    if one.file == other.file:
        return one.line < other.line
    if one.origin.when is not None and other.origin.when is not None:
        return one.origin.when < other.origin.when
    return None


def picture(events: Iterable[Event]) -> Picture:
    """Puts the events of all logs of one job together."""
    timeouts: list[Timeout] = []
    statuses: list[Status] = []
    marks: list[Mark] = []
    ranks: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.origin.rank is not None:
            ranks[event.file].add(event.origin.rank)
        if isinstance(event, Timeout):
            timeouts.append(event)
        elif isinstance(event, Status):
            statuses.append(event)
        elif isinstance(event, Mark):
            marks.append(event)
    groups = _groups(timeouts, statuses)
    failures: list[Event] = [*timeouts, *(mark for mark in marks if mark.failure)]
    return Picture(groups, marks, _earliest(failures), dict(ranks), statuses)


def _groups(timeouts: list[Timeout], statuses: list[Status]) -> list[Group]:
    found: dict[tuple[object, ...], Group] = {}
    failed: dict[tuple[str, int], list[Status]] = defaultdict(list)
    for status in statuses:
        if status.seq is not None:
            failed[status.file, status.seq].append(status)
    for timeout in sorted(timeouts, key=lambda t: (t.group is None, t.file, t.line)):
        label = timeout.group or _label_of(timeout, failed[timeout.file, timeout.seq], found)
        group = _group_for(timeout, label, found)
        rank = _place(timeout, label)
        member = group.members.setdefault(rank, Member(rank))
        if member.world_rank is None:
            member.world_rank = timeout.origin.rank
        member.process = member.process or timeout.origin.process
        same = [t for t in member.timeouts if (t.seq, t.op) == (timeout.seq, timeout.op)]
        if not same:
            member.timeouts.append(timeout)
        elif timeout.line < same[0].line or same[0].origin.rank is None:
            member.timeouts[member.timeouts.index(same[0])] = timeout
        group.files.add(timeout.file)
    for status in statuses:
        for group in found.values():
            same_group = group.label is not None and group.label.key == status.group.key
            if same_group and status.file in group.files and status.group.rank is not None:
                member = group.members.setdefault(status.group.rank, Member(status.group.rank))
                member.world_rank = status.origin.rank if member.world_rank is None else member.world_rank
                if member.status is None or status.seq is not None:
                    member.status = status
    return list(found.values())


def _group_for(timeout: Timeout, label: GroupLabel | None, found: dict[tuple[object, ...], Group]) -> Group:
    """The group of a timeout. In another log the same numbers are the same group unless the same rank waits
    in both.
    """
    key = label.key if label else (None,)
    nth = 0
    while (group := found.get((*key, nth))) is not None:
        member = group.members.get(_place(timeout, label))
        if timeout.file in group.files or member is None or not member.waits:
            return group
        nth += 1
    group = found[(*key, nth)] = Group(label)
    return group


def _place(timeout: Timeout, label: GroupLabel | None) -> int:
    """The rank in its group. Lines that people shortened may only have the global rank."""
    for rank in (label.rank if label else None, timeout.rank, timeout.origin.rank):
        if rank is not None:
            return rank
    return 0


def _label_of(
    timeout: Timeout, candidates: list[Status], found: dict[tuple[object, ...], Group]
) -> GroupLabel | None:
    """The group of a timeout whose own line does not name it: from the status that the same rank wrote about
    it.
    """
    fitting = [
        status
        for status in candidates
        if (timeout.rank is None or status.group.rank == timeout.rank)
        and (
            timeout.origin.rank is None
            or status.origin.rank is None
            or timeout.origin.rank == status.origin.rank
        )
        and _near(timeout, status)
    ]
    if fitting:
        return min(
            fitting, key=lambda status: (status.line < timeout.line, abs(status.line - timeout.line))
        ).group
    # The status line may be lost. A group that is known to wait at this very number in this file will do.
    for group in found.values():
        if group.label and timeout.file in group.files and any(t.seq == timeout.seq for t in group.timeouts):
            label = group.label
            return GroupLabel(label.local, label.guid, label.number, label.desc, timeout.rank)
    return None


def _near(one: Event, other: Event) -> bool:
    first, second = one.origin.when, other.origin.when
    return first is None or second is None or abs(first - second) < _SAME_MOMENT


def _earliest(events: Sequence[_E]) -> _E | None:
    """The event before which no other is known to have come; None if two logs each have one and no clock
    decides.
    """
    per_file: dict[str, _E] = {}
    for event in events:
        if event.file not in per_file or event.line < per_file[event.file].line:
            per_file[event.file] = event
    firsts = list(per_file.values())
    for one in firsts:
        if all(one is other or before(one, other) for other in firsts):
            return one
    return None
