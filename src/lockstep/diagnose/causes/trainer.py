"""Causes by which the ranks of one side issue different collectives."""

from __future__ import annotations

from collections.abc import Callable

from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose.causes.case import Case, judged
from lockstep.diagnose.events import Timeout
from lockstep.diagnose.groups_seen import Group
from lockstep.diagnose.model import Cause, Evidence

_SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLREDUCE_COALESCED")
"""Operations whose sizes must agree: ranks with different ones are at different places of the program."""


def mixed_batch(case: Case) -> Cause | None:
    """Same operation, same number, different sizes on different ranks, in a job whose data has images."""
    parted = _parted(case, lambda timeout: (timeout.op, timeout.numel_in))
    kinds = case.picture.of("multimodal")
    if parted is None or not kinds or len({timeout.op for timeout in parted}) > 1:
        return None
    if case.reading is not None and case.reading.side == "rollout":
        return None
    evidence = _sizes(parted)
    evidence.append(Evidence.of("the model takes images: batches can be of two kinds", kinds[0]))
    return judged("mixed-batch", evidence, [], needed=2 if parted[0].op == "ALLREDUCE" else 3)


def rank_dependent_control_flow(case: Case) -> Cause | None:
    """Different operations at one number, ranks at different numbers, or ranks waiting for each other in two
    groups.
    """
    evidence: list[Evidence] = []
    told = case.picture.of("mismatch")
    for mark in told[:2]:
        by_whom = "gloo" if mark.detail.startswith("op.") else "torch"
        evidence += [
            Evidence.of(f"{by_whom} compared what the ranks were about to do and found them to differ", mark),
            Evidence.of(f"namely: {mark.detail}", mark),
        ]
    doubtful = False
    if parted := _parted(case, lambda timeout: (timeout.op,)):
        evidence += [Evidence.of(f"{_who(t)} issued {t.op} as number {t.seq}", t) for t in parted]
    elif (sized := _parted(case, lambda t: (t.op, t.numel_in))) and not case.picture.of("multimodal"):
        evidence += _sizes(sized)
        doubtful = sized[0].op not in _SAME_SIZE and not told
    elif case.group is not None and not case.step_sync:
        evidence += _at_different_numbers(case)
        evidence += _crossed(case)
    if not evidence and (suspected := case.picture.of("nccl hang")):
        evidence.append(Evidence.of("NCCL suspects that the ranks' collectives do not match", suspected[0]))
    against: list[Evidence] = []
    if case.earlier(case.picture.of("child exit", "engine died")) and not told:
        against.append(Evidence("a process ended before: what the others did then may be its consequence"))
    needed = len(evidence) + 1 if doubtful else 2
    return judged("rank-dependent-control-flow", evidence, against, decisive=bool(against), needed=needed)


def _sizes(parted: list[Timeout]) -> list[Evidence]:
    return [
        Evidence.of(f"{_who(t)} issued {t.op} of {t.numel_in} elements as number {t.seq}", t) for t in parted
    ]


def _at_different_numbers(case: Case) -> list[Evidence]:
    """A rank that has completed what another one still waits for took part in something else under that
    number.
    """
    group = case.group
    if group is None or not group.one:
        return []
    waiting = [member for member in group.members.values() if member.first]
    low = min((first for member in waiting if (first := member.first)), key=lambda t: t.seq)
    ahead = next(
        (
            member
            for member in waiting
            if member.first
            and member.first.seq > low.seq
            and member.status
            and member.status.completed >= low.seq
        ),
        None,
    )
    if ahead is None or ahead.first is None or ahead.status is None:
        return []
    return [
        Evidence.of(f"{_who(low)} waits in number {low.seq}", low),
        Evidence.of(
            f"{_who(ahead.first)} has completed number {ahead.status.completed}, "
            f"though a rank still waits in {low.seq}",
            ahead.status,
        ),
    ]


def _crossed(case: Case) -> list[Evidence]:
    """Two groups, each lacking a rank that waits in the other. Only ranks that are known to be in both
    count.
    """
    mine = case.group
    if mine is None or not mine.one:
        return []
    here = _waiting(mine)
    for other in case.picture.groups[:_MANY]:
        if other is mine or not other.one or not other.files & mine.files:
            continue
        there = _waiting(other)
        only_here = {rank for rank in here - there if _in(other, rank)}
        only_there = {rank for rank in there - here if _in(mine, rank)}
        if only_here and only_there:
            return [
                Evidence.of(f"ranks {arithmetic.ranges(only_here)} wait in {mine.label}", mine.timeouts[0]),
                Evidence.of(
                    f"ranks {arithmetic.ranges(only_there)} wait in {other.label}", other.timeouts[0]
                ),
            ]
    return []


_MANY = 64  # groups that are looked at for a crossing


def _waiting(group: Group) -> set[int]:
    return {m.world_rank for m in group.members.values() if m.waits and m.world_rank is not None}


def _in(group: Group, world_rank: int) -> bool:
    """Return whether a rank is known to be a member: a line says so, or it is the group of all ranks."""
    return group.is_default or any(m.world_rank == world_rank for m in group.members.values())


def _parted(case: Case, key: Callable[[Timeout], tuple[object, ...]]) -> list[Timeout] | None:
    """Two ranks' timeouts at the first number that differ by this key; None if all ranks agree, or if they
    are not known to be of one group.
    """
    if case.group is None or not case.group.one:
        return None
    at = case.group.works
    other = next((timeout for timeout in at if key(timeout) != key(at[0])), None)
    return None if other is None else [at[0], other]


def _who(timeout: Timeout) -> str:
    return f"rank {timeout.rank if timeout.origin.rank is None else timeout.origin.rank}"
