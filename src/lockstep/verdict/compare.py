"""Where the ranks of a group differ: at the boundaries they share, in their streams, and at the end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from lockstep.record import Boundary, Operation, Problem

from .first_difference import operation_at, part
from .groups import JobGroup, Member

MOST_LOOKED_AT = 2_000_000
"""Boundaries that are looked at one by one for a group, all groups together (some seconds)."""


@dataclass(frozen=True)
class Position:
    """Count and digest of a group's collectives at a boundary; the digest is None where it tells nothing."""

    index: int
    boundary: Boundary
    count: int
    digest: str | None


@dataclass(frozen=True)
class Difference:
    """How a group differs. `issued` is what each rank issued as number `seq` (None: nothing, or unknown)."""

    group: JobGroup
    t: float
    counts: dict[int, int]
    seq: int | None
    issued: dict[int, Operation | None]
    boundary: Boundary | None
    agreed: Boundary | None
    absent: tuple[int, ...] = ()  # ranks that have not issued number `seq`

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that are not like most of the group; none where there is no majority."""
        if self.seq is None:
            return ()
        kinds = {rank: (self.issued.get(rank), rank in self.absent) for rank in self.counts}
        most, votes = Counter(kinds.values()).most_common(1)[0]
        return tuple(r for r, kind in sorted(kinds.items()) if kind != most) if votes * 2 > len(kinds) else ()


def difference(group: JobGroup, *, every: bool = True) -> Difference | None:
    """The first difference that the boundaries and the streams prove, whether the job runs on or not.

    Without `every`, boundaries are left out that a later one proves, by equal digests, to lie in equal
    streams: a job that is looked at again and again costs no more as it gets longer.
    """
    found = [d for cohort in group.cohorts if (d := _at_boundaries(group, cohort, every))]
    if not found and every:
        found = [d] if (d := in_streams(group)) else []
    return min(found, key=lambda d: d.t) if found else _across(group)


def in_streams(group: JobGroup) -> Difference | None:
    """What ranks of one role have issued must be the same, also after the last boundary that they share."""
    found = [d for cohort in group.cohorts if (d := _in_streams(group, cohort))]
    return min(found, key=lambda d: d.t, default=None)


def _positions(member: Member, start: int) -> dict[tuple[str, int], Position]:
    """By name and number, from the boundary with index `start` on; without those of unsure count."""
    ledger = member.ledger
    marks = ledger.marks.get(member.g, [])
    at = bisect_left(marks, start, key=lambda mark: mark.index)
    last: tuple[int, str | None] | None = _count_at(member, start - 1)
    found = {}
    for index in range(start, len(ledger.boundaries)):
        if index in ledger.gaps:
            last = None  # what was in the unreadable line may have moved this group
        if at < len(marks) and marks[at].index == index:
            last = marks[at].count, marks[at].digest
            at += 1
        if last is not None:
            boundary = ledger.boundaries[index]
            found[boundary.name, boundary.n] = Position(index, boundary, *last)
    return found


def _starts(cohort: Sequence[Member]) -> list[int]:
    """Indices of the last boundary that all have passed, if digests prove them equal there; else zeros."""
    nowhere = [0] * len(cohort)
    shared = _shared(cohort)
    if shared is None or any(member.ledger.gaps for member in cohort):
        return nowhere
    starts, seen = [], set()
    for member in cohort:
        boundaries = member.ledger.boundaries
        start = next(
            i
            for i in range(len(boundaries) - 1, -1, -1)
            if (boundaries[i].name, boundaries[i].n) == (shared.name, shared.n)
        )
        starts.append(start)
        seen.add(_count_at(member, start))
    return starts if len(seen) == 1 and None not in {digest for _, digest in seen} else nowhere


def _count_at(member: Member, index: int) -> tuple[int, str | None]:
    marks = member.ledger.marks.get(member.g, [])
    at = bisect_right(marks, index, key=lambda mark: mark.index)
    return (marks[at - 1].count, marks[at - 1].digest) if at else (0, "")


def _at_boundaries(group: JobGroup, cohort: Sequence[Member], every: bool) -> Difference | None:
    if len(cohort) < 2:
        return None
    starts = [0] * len(cohort) if every else _starts(cohort)
    if len(set(starts)) == 1 and _in_one_order(group, cohort, starts[0]):
        return _at_marks(group, cohort, starts[0])
    if group.work.looked_at >= MOST_LOOKED_AT:
        group.work.left_out.append(group.name)
        return None
    group.work.looked_at += sum(len(m.ledger.boundaries) for m in cohort)
    by_rank = {m.rank: _positions(m, start) for m, start in zip(cohort, starts, strict=True)}
    order: dict[tuple[str, int], int] = {}
    for positions in by_rank.values():
        for key, position in positions.items():
            order[key] = min(position.index, order.get(key, position.index))
    agreed = None
    for key in sorted(order, key=lambda k: (order[k], k)):
        here = {rank: positions[key] for rank, positions in by_rank.items() if key in positions}
        first = next(iter(here.values()))
        if any(_differ(first, p) for p in here.values()):
            return _locate(group, here, agreed)
        if len(here) == len(cohort):
            agreed = first.boundary
    return None


def _in_one_order(group: JobGroup, cohort: Sequence[Member], start: int) -> bool:
    """Whether all pass the same boundaries in the same order from `start` on, as far as each has come."""
    key = start, *(id(member.ledger) for member in cohort)
    if key not in group.work.orders:
        longest = max((m.ledger.boundaries for m in cohort), key=len)
        group.work.orders[key] = not any(member.ledger.gaps for member in cohort) and all(
            (a.name, a.n) == (b.name, b.n)
            for member in cohort
            for a, b in zip(
                islice(member.ledger.boundaries, start, None), islice(longest, start, None), strict=False
            )
        )
    return group.work.orders[key]


def _at_marks(group: JobGroup, cohort: Sequence[Member], start: int) -> Difference | None:
    """The same of ranks in one order, by the boundaries at which a count has changed: these are few where
    groups are many.
    """
    marks = [m.ledger.marks.get(m.g, []) for m in cohort]
    begin = [bisect_left(each, start, key=lambda mark: mark.index) for each in marks]
    changes = {mark.index for each, at in zip(marks, begin, strict=True) for mark in each[at:]}
    everybody = min(len(m.ledger.boundaries) for m in cohort)
    for index in sorted(changes):
        here = {
            m.rank: Position(index, m.ledger.boundaries[index], *_count_at(m, index))
            for m in cohort
            if index < len(m.ledger.boundaries)
        }
        if len(here) > 1 and any(_differ(next(iter(here.values())), p) for p in here.values()):
            before = min(index, everybody) - 1
            return _locate(group, here, cohort[0].ledger.boundaries[before] if before >= start else None)
    return None


def _differ(a: Position, b: Position) -> bool:
    return a.count != b.count or (a.digest is not None and b.digest is not None and a.digest != b.digest)


def _locate(group: JobGroup, here: dict[int, Position], agreed: Boundary | None) -> Difference:
    counts = {rank: position.count for rank, position in here.items()}
    first = min(here)
    seqs = []
    known = True
    for rank, count in counts.items():
        parting = part(group.members[first], group.members[rank], (counts[first], count))
        known = known and parting.known
        if parting.seq is not None:
            seqs.append(parting.seq)
    seq = min(seqs) if seqs and known else None
    boundary = min((p.boundary for p in here.values()), key=lambda b: b.t)
    issued = _issued(group, counts, seq)
    return Difference(group, boundary.t, counts, seq, issued, boundary, agreed, _below(counts, seq))


def _below(counts: dict[int, int], seq: int | None) -> tuple[int, ...]:
    return () if seq is None else tuple(rank for rank, count in sorted(counts.items()) if count < seq)


def _issued(group: JobGroup, counts: dict[int, int], seq: int | None) -> dict[int, Operation | None]:
    if seq is None:
        return {}
    return {r: operation_at(group.members[r], seq) if count >= seq else None for r, count in counts.items()}


def _in_streams(group: JobGroup, cohort: Sequence[Member]) -> Difference | None:
    seqs = [seq for member in cohort[1:] if (seq := part(cohort[0], member).seq) is not None]
    if not seqs:
        return None
    counts = {member.rank: member.issued for member in cohort}
    seq = min(seqs)
    known = {member.rank: member.recorded for member in cohort}
    issued = _issued(group, known, seq)
    t = min(member.ledger.last_t for member in cohort)
    return Difference(group, t, counts, seq, issued, None, last_shared(group), _below(counts, seq))


def _across(group: JobGroup) -> Difference | None:
    """Members of different roles pass different boundaries: what both have issued must be the same all the
    same.
    """
    leads = [cohort[0] for cohort in group.cohorts]
    for other in leads[1:]:
        seq = part(leads[0], other).seq
        if seq is not None:
            counts = {rank: m.issued for rank, m in group.members.items()}
            t = min((b.t for m in (leads[0], other) for b in _after(m, seq)), default=leads[0].ledger.last_t)
            issued = _issued(group, counts, seq)
            boundary = next(iter(_after(leads[0], seq)), None)
            return Difference(group, t, counts, seq, issued, boundary, None)
    return None


def _after(member: Member, seq: int) -> list[Boundary]:
    """The boundary by which a rank had issued number `seq`, if it has passed one since."""
    ledger = member.ledger
    marks = [m for m in ledger.marks.get(member.g, []) if m.count >= seq and m.index < len(ledger.boundaries)]
    return [ledger.boundaries[m.index] for m in marks[:1]]


def last_counts(group: JobGroup, settle_s: float) -> Difference | Problem | None:
    """The counts at the end of a job that has ended.

    A process that ended by itself has a last count. One that was terminated has what it was last seen with:
    that is a difference if it was seen behind another rank for the settling time, and else no proof of
    anything.
    """
    counts = {rank: member.issued for rank, member in group.members.items()}
    high = max(counts.values(), default=0)
    behind = [member for member in group.members.values() if member.issued < high]
    if not behind:
        return None
    since = min(m.ledger.issued_since[m.g] for m in group.members.values() if m.issued == high)
    sure = [m for m in behind if m.ledger.ended is not None or m.ledger.last_t >= since + settle_s]
    if not sure:
        member = behind[0]
        what = (
            f"group {group.name}: last seen with {member.issued} collectives, another rank with {high}: "
            "expected equal counts, or an end line"
        )
        return Problem(member.ledger.path, None, what)
    seq = min(m.issued for m in sure) + 1
    issued = _issued(group, counts, seq)
    for rank, member in group.members.items():
        wait = member.ledger.waiting_at(member.ledger.last_t)
        if wait and wait.op and wait.g == member.g and wait.seq == seq:
            issued[rank] = Operation(wait.op, wait.dtype, wait.n)
    return Difference(group, since, counts, seq, issued, None, last_shared(group), _below(counts, seq))


def last_shared(group: JobGroup) -> Boundary | None:
    boundaries = [_shared(cohort) for cohort in group.cohorts]
    return max((b for b in boundaries if b), key=lambda b: b.t, default=None)


def _shared(cohort: Sequence[Member]) -> Boundary | None:
    """The last boundary that all of these processes have passed."""
    at = max((_last_place(cohort, name) for name in cohort[0].ledger.places), default=-1)
    return cohort[0].ledger.boundaries[at] if at >= 0 else None


def _last_place(cohort: Sequence[Member], name: str) -> int:
    """Where in the first one's boundaries the last of that name is that all have passed; -1 for none."""
    first = cohort[0].ledger
    n = min(m.ledger.passed.get(name, 0) for m in cohort)
    places = first.places[name]
    passed = bisect_right(places, n, key=lambda place: first.boundaries[place].n)
    return places[passed - 1] if passed else -1
