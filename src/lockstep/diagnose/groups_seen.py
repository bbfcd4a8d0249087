"""Which ranks of which group say what: timeouts and status lines put together by group.

Numbers are compared only within one group that is known to be one (`Group.one`). A label with a GUID names a
group. The bare number of torch 2.2 to 2.4 counts the groups of a process, so two groups of different ranks
can have the same. Without a label, a log holds one group only if nothing in it speaks for several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from lockstep.diagnose.events import NO_NUMBER, Event, GroupLabel, Status, Timeout

_SAME_MOMENT = 120.0  # seconds between the lines that one rank's watchdog writes about one failure
_NAMESAKES = 16  # groups under one label that are told apart
_DEFAULT = ("0", "default_pg")
Work = tuple[str, int, str, int | None, int | None]


@dataclass
class Member:
    """One rank of a group. `rank` is its place in the group, `world_rank` its rank in its half of the job,
    if told.
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
    def waits_in(self) -> int | None:
        """The number in which it waits, from its timeout or its own status; None if no line says that it
        waits.
        """
        if first := self.first:
            return first.seq
        status = self.status
        if status is None or status.completed >= status.enqueued:
            return None
        return status.seq if status.seq is not None else max(status.completed, 0) + 1

    @property
    def waits(self) -> bool:
        return self.waits_in is not None

    def absent_from(self, seq: int) -> bool:
        """Return whether its own status proves that it finished the number before and did not come to this
        one.
        """
        status = self.status
        return (
            status is not None
            and not self.waits
            and max(status.enqueued, 0) == max(status.completed, 0) == seq - 1
        )


@dataclass
class Group:
    """A group in which a collective ran out of time. `label` is None where torch is too old to print it.

    `one` is whether all that is in it is known to be of one group.
    """

    label: GroupLabel | None
    one: bool = True
    members: dict[int, Member] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    @property
    def is_default(self) -> bool:
        label = self.label
        return label is not None and (
            label.guid in _DEFAULT
            or (label.guid is None and (label.number == 0 or label.desc == "default_pg"))
        )

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        return tuple(sorted(rank for rank, member in self.members.items() if member.waits))

    @cached_property
    def timeouts(self) -> list[Timeout]:
        found = [t for member in self.members.values() for t in member.timeouts]
        return sorted(found, key=lambda timeout: (timeout.file, timeout.line))

    @cached_property
    def seq(self) -> int:
        """The first number at which anybody waits."""
        return min(timeout.seq for timeout in self.timeouts)

    @cached_property
    def works(self) -> list[Timeout]:
        """One timeout per rank at `seq`, in order of rank."""
        found = {t.rank: t for t in reversed(self.timeouts) if t.seq == self.seq}
        return [found[rank] for rank in sorted(found, key=lambda rank: -1 if rank is None else rank)]

    @cached_property
    def repeated(self) -> int:
        return sum(timeout.repeated for timeout in self.timeouts)

    def add(self, timeout: Timeout, rank: int) -> None:
        member = self.members.setdefault(rank, Member(rank))
        if member.world_rank is None:
            member.world_rank = timeout.origin.rank
        member.process = member.process or timeout.origin.process
        same = [t for t in member.timeouts if (t.seq, t.op) == (timeout.seq, timeout.op)]
        if not same:
            if len(member.timeouts) < _NAMESAKES:
                member.timeouts.append(timeout)
        elif timeout.line < same[0].line or same[0].origin.rank is None:
            member.timeouts[member.timeouts.index(same[0])] = timeout
        self.files.add(timeout.file)


def groups(timeouts: list[Timeout], statuses: list[Status]) -> list[Group]:
    """Return the groups in which something ran out of time."""
    labelled: list[tuple[Timeout, GroupLabel]] = []
    bare: list[Timeout] = []
    own = _Statuses(statuses)
    for timeout in sorted(timeouts, key=lambda t: (t.file, t.line)):
        label = timeout.group or own.label(timeout)
        if label is None:
            bare.append(timeout)
        else:
            labelled.append((timeout, label))
    found = _Labelled()
    for timeout, label in labelled:
        found.add(timeout, label)
    rest = [timeout for timeout in bare if not found.adopts(timeout)]
    found.complete(statuses)
    return [*found.all(), *_unlabelled(rest, alone=not labelled)]


def place(timeout: Timeout, label: GroupLabel | None) -> int:
    """Return the rank in its group. Lines that people shortened may only have the global rank."""
    for rank in (label.rank if label else None, timeout.rank, timeout.origin.rank):
        if rank is not None:
            return rank
    return 0


class _Statuses:
    """Failed status lines, by what finds the one that a rank wrote about its timeout."""

    def __init__(self, statuses: Iterable[Status]) -> None:
        self._found: dict[tuple[object, ...], list[Status]] = defaultdict(list)
        for status in statuses:
            if status.seq is None:
                continue
            at = (status.file, status.seq)
            world = status.origin.rank
            for key in {
                (*at, status.group.rank, world),
                (*at, status.group.rank, "any"),
                (*at, "any", world),
            }:
                self._found[key].append(status)

    def label(self, timeout: Timeout) -> GroupLabel | None:
        """Return the group of a timeout whose own line does not name it."""
        at, world = (timeout.file, timeout.seq), timeout.origin.rank
        if timeout.rank is None:
            keys: list[tuple[object, ...]] = [(*at, "any", world)]
        elif world is None:
            keys = [(*at, timeout.rank, "any")]
        else:
            keys = [(*at, timeout.rank, world), (*at, timeout.rank, None)]
        fitting = [s for key in keys for s in self._found.get(key, ())[:_NAMESAKES] if _near(timeout, s)]
        nearest = min(
            fitting, key=lambda s: (s.line < timeout.line, abs(s.line - timeout.line)), default=None
        )
        return nearest.group if nearest else None


class _Labelled:
    """Groups by label. Several can have the same: halves of a job, and where only bare numbers are told."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[object, ...], list[Group]] = defaultdict(list)
        self._by_work: dict[Work, list[Group]] = defaultdict(list)

    def all(self) -> list[Group]:
        return [group for namesakes in self._by_key.values() for group in namesakes]

    def add(self, timeout: Timeout, label: GroupLabel) -> None:
        namesakes = self._by_key[label.key]
        rank = place(timeout, label)
        group = next((g for g in namesakes if _has_room(g, timeout, rank)), None)
        if group is None and len(namesakes) < _NAMESAKES:
            # A second rank with this place. In another file it is the other half of the job, whose groups
            # have the same numbers. Else the label does not tell groups apart.
            apart = all(timeout.file not in g.files for g in namesakes)
            group = Group(label, one=apart)
            namesakes.append(group)
        elif group is None:
            group = namesakes[-1]
        group.add(timeout, rank)
        if (label.guid is None and not group.is_default) or any(not g.one for g in namesakes):
            many = len(namesakes) > 1
            for namesake in namesakes if many else ():
                namesake.one = False
            group.one = group.one and not many
        self._by_work[_work(timeout)].append(group)

    def adopts(self, timeout: Timeout) -> bool:
        """Put a timeout without a label into the one group that waits in the same work, if there is one
        only.
        """
        rank = place(timeout, None)
        fitting = {id(g): g for g in self._by_work.get(_work(timeout), ())[:4096] if rank not in g.members}
        if len(fitting) != 1:
            return False
        next(iter(fitting.values())).add(timeout, rank)
        return True

    def complete(self, statuses: Iterable[Status]) -> None:
        """Add the members that only a status line tells of, and to each member its status."""
        for status in statuses:
            rank = status.group.rank
            if rank is None:
                continue
            for group in self._by_key.get(status.group.key, ()):
                member = group.members.get(rank)
                world = status.origin.rank
                if status.file not in group.files and not _same_half(group, status):
                    continue
                if member and None not in (member.world_rank, world) and member.world_rank != world:
                    continue
                if member is None:
                    member = group.members[rank] = Member(rank)
                member.world_rank = world if member.world_rank is None else member.world_rank
                if member.status is None or status.seq is not None:
                    member.status = status
                break


def _has_room(group: Group, timeout: Timeout, rank: int) -> bool:
    member = group.members.get(rank)
    if member is None or not member.timeouts:
        return True
    world = timeout.origin.rank
    same_rank = world is None or member.world_rank is None or world == member.world_rank
    return same_rank and timeout.file in group.files


def _same_half(group: Group, status: Status) -> bool:
    """Return whether a status in a file of its own can be of this group: its place must be free."""
    member = group.members.get(status.group.rank if status.group.rank is not None else -1)
    return member is None or not member.timeouts


def _unlabelled(timeouts: list[Timeout], *, alone: bool) -> list[Group]:
    """Return the groups of timeouts that nothing names."""
    if not timeouts:
        return []
    halves: list[dict[int, set[tuple[int, str]]]] = []
    several = not alone
    by_half: list[list[Timeout]] = []
    files: list[set[str]] = []
    for timeout in timeouts:
        rank, number = place(timeout, None), (timeout.seq, timeout.op)
        nth = next(
            (
                n
                for n, half in enumerate(halves)
                if timeout.file in files[n] or not (rank in half and number not in half[rank])
            ),
            None,
        )
        if nth is None and len(halves) < _NAMESAKES:
            nth = len(halves)
            halves.append({})
            by_half.append([])
            files.append(set())
        nth = len(halves) - 1 if nth is None else nth
        numbers = halves[nth].setdefault(rank, set())
        numbers.add(number)
        several |= len(numbers) > 1
        by_half[nth].append(timeout)
        files[nth].add(timeout.file)
    several |= _places_clash(timeouts) or any(timeout.seq == NO_NUMBER for timeout in timeouts)
    if not several:
        return [_filled(Group(None), half) for half in by_half]
    alike: dict[Work, list[Timeout]] = defaultdict(list)
    for timeout in timeouts:
        alike[("", *_work(timeout)[1:])].append(timeout)
    return [_filled(Group(None, one=False), works) for works in alike.values()]


def _places_clash(timeouts: list[Timeout]) -> bool:
    """Return whether two ranks of the job have the same place: they are in different groups."""
    worlds: dict[tuple[str, int], int] = {}
    for timeout in timeouts:
        if timeout.rank is None or timeout.origin.rank is None:
            continue
        if worlds.setdefault((timeout.file, timeout.rank), timeout.origin.rank) != timeout.origin.rank:
            return True
    return False


def _filled(group: Group, timeouts: list[Timeout]) -> Group:
    for timeout in timeouts:
        group.add(timeout, place(timeout, None))
    return group


def _work(timeout: Timeout) -> Work:
    return timeout.file, timeout.seq, timeout.op, timeout.numel_in, timeout.numel_out


def _near(one: Event, other: Event) -> bool:
    first, second = one.origin.when, other.origin.when
    return first is None or second is None or abs(first - second) < _SAME_MOMENT
