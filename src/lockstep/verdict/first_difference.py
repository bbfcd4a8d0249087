"""At which sequence number the collectives of two ranks part, from digests and run-length encoded streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.record import Mark, Operation

from .groups import Member


@dataclass(frozen=True)
class Parting:
    """`seq` counts from 1; None with `known` false where the streams to find it are not there."""

    seq: int | None
    known: bool = True


@dataclass(frozen=True)
class _Run:
    first: int
    last: int
    operation: Operation | None  # None: not known


def agreed_count(a: Member, b: Member) -> int:
    """The highest count up to which the digests prove both streams equal."""
    digests = {mark.count: mark.digest for mark in a.marks if mark.digest is not None}
    same = (m.count for m in reversed(b.marks) if m.digest is not None and digests.get(m.count) == m.digest)
    return next(same, 0)


def part(a: Member, b: Member, limits: tuple[int, int] | None = None) -> Parting:
    """The first collective that differs. With `limits`, the counts of both at one boundary, a missing one
    differs too.

    Without limits only what both have told is compared.
    """
    start = agreed_count(a, b)
    end_a, end_b = limits or (a.recorded, b.recorded)
    both = min(end_a, end_b)
    runs_a, runs_b = _runs(a, start, both), _runs(b, start, both)
    run_a, run_b = next(runs_a, None), next(runs_b, None)
    while run_a and run_b:
        if run_a.operation is None or run_b.operation is None:
            return Parting(None, known=False)
        if run_a.operation != run_b.operation:
            return Parting(max(run_a.first, run_b.first))
        last_a, last_b = run_a.last, run_b.last
        run_a = next(runs_a, None) if last_a <= last_b else run_a
        run_b = next(runs_b, None) if last_b <= last_a else run_b
    return Parting(both + 1 if limits and end_a != end_b else None)


def operation_at(member: Member, seq: int) -> Operation | None:
    """What a rank issued as number `seq`, if its streams tell."""
    return next((run.operation for run in _runs(member, seq - 1, seq)), None)


def _runs(member: Member, after: int, upto: int) -> Iterator[_Run]:
    """The runs of the collectives number `after` + 1 to `upto`, cut to this range, without holes."""
    before = 0
    for mark in member.marks:
        if before >= upto:
            return
        if mark.count > after:
            for run in _mark_runs(member, mark, before):
                if run.last > after and run.first <= upto:
                    yield _Run(max(run.first, after + 1), min(run.last, upto), run.operation)
        before = mark.count


def _mark_runs(member: Member, mark: Mark, before: int) -> Iterator[_Run]:
    stream = mark.stream
    start = mark.count - sum(stream[1::2]) if stream is not None else mark.count
    if start < before:  # the stream claims more than was counted: it tells nothing
        stream, start = None, mark.count
    if start > before:
        yield _Run(before + 1, start, None)
    if stream is None:
        return
    for op, repeats in zip(stream[::2], stream[1::2], strict=True):
        yield _Run(start + 1, start + repeats, member.ledger.ops.get(op))
        start += repeats
