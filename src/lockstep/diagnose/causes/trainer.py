"""Causes by which the ranks of one side issue different collectives."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose.causes.case import Case, judged
from lockstep.diagnose.events import Timeout
from lockstep.diagnose.model import Cause, Evidence


def mixed_batch(case: Case) -> Cause | None:
    """Same operation, same number, different sizes on different ranks; data of more than one kind makes it
    likely.
    """
    parted = _parted(case, lambda timeout: (timeout.op, timeout.numel_in))
    if parted is None or len({timeout.op for timeout in parted}) > 1:
        return None
    if case.reading is not None and case.reading.side == "rollout":
        return None
    evidence = [
        Evidence.of(f"{_who(t)} issued {t.op} of {t.numel_in} elements as number {t.seq}", t) for t in parted
    ]
    kinds = case.picture.of("multimodal")
    evidence += [
        Evidence.of("the model takes images: batches can be of two kinds", mark) for mark in kinds[:1]
    ]
    against = []
    if not kinds:
        against.append(Evidence("nothing in the input says that the data is of more than one kind"))
    return judged("mixed-batch", evidence, against, needed=2 if parted[0].op == "ALLREDUCE" else 3)


def rank_dependent_control_flow(case: Case) -> Cause | None:
    """Different operations at one number, ranks at different numbers, or ranks waiting for each other in two
    groups.
    """
    evidence: list[Evidence] = []
    for mark in case.picture.of("mismatch")[:2]:
        evidence += [
            Evidence.of("torch compared what the ranks were about to do and found them to differ", mark),
            Evidence.of(f"namely: {mark.detail}", mark),
        ]
    if parted := _parted(case, lambda timeout: (timeout.op,)):
        evidence += [Evidence.of(f"{_who(t)} issued {t.op} as number {t.seq}", t) for t in parted]
    elif case.group is not None and not case.step_sync:
        evidence += _at_different_numbers(case)
        evidence += _crossed(case)
    against: list[Evidence] = []
    if case.earlier(case.picture.of("child exit", "engine died")):
        against.append(Evidence("a process ended before: what the others did then may be its consequence"))
    return judged("rank-dependent-control-flow", evidence, against, decisive=bool(against))


def _at_different_numbers(case: Case) -> list[Evidence]:
    """A rank that has completed what another one still waits for took part in something else under that
    number.
    """
    assert case.group is not None
    firsts = [first for member in case.group.members.values() if (first := member.first)]
    low = min(firsts, key=lambda t: t.seq)
    high = max(firsts, key=lambda t: t.seq)
    status = next((m.status for m in case.group.members.values() if m.first is high), None)
    if low.seq == high.seq or status is None or status.completed < low.seq:
        return []
    return [
        Evidence.of(f"{_who(low)} waits in number {low.seq}", low),
        Evidence.of(
            f"{_who(high)} has completed number {status.completed}, though a rank still waits in {low.seq}",
            status,
        ),
    ]


def _crossed(case: Case) -> list[Evidence]:
    """Two groups of one side, each lacking a rank that waits in the other."""
    mine = case.group
    assert mine is not None
    for other in case.picture.groups:
        if other is mine or not other.files & mine.files:
            continue
        here = {m.world_rank for m in mine.members.values() if m.waits and m.world_rank is not None}
        there = {m.world_rank for m in other.members.values() if m.waits and m.world_rank is not None}
        if here - there and there - here:
            return [
                Evidence.of(
                    f"ranks {arithmetic.ranges(here - there)} wait in {mine.label}", mine.timeouts[0]
                ),
                Evidence.of(
                    f"ranks {arithmetic.ranges(there - here)} wait in {other.label}", other.timeouts[0]
                ),
            ]
    return []


def _parted(case: Case, key: Callable[[Timeout], tuple[object, ...]]) -> list[Timeout] | None:
    """Two ranks' timeouts at the first number that differ by this key; None if all ranks agree."""
    if case.group is None:
        return None
    at = case.group.at(case.group.seq)
    other = next((timeout for timeout in at if key(timeout) != key(at[0])), None)
    return None if other is None else [at[0], other]


def _who(timeout: Timeout) -> str:
    return f"rank {timeout.rank if timeout.rank is not None else timeout.origin.rank}"
