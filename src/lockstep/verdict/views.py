"""The parts of a case as a verdict shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lockstep.record import PULSE_S, Boundary, Ledger, Operation, Waiting

from .compare import Difference, last_shared
from .ending import told
from .first_difference import operation_at
from .groups import JobGroup, Member
from .model import BoundaryView, GroupView, RankState, RankView
from .quiescence import silent_for
from .sentence import innermost, operation_text
from .wait_graph import Hang, open_boundary

RANKS_SHOWN = 1024
"""Of a group's ranks, and of those without a ledger; the rest is counted."""


def group_view(group: JobGroup) -> GroupView:
    ranks = group.ranks[:RANKS_SHOWN]
    return GroupView(group.name, ranks, group.lib, group.backend, len(group.ranks) - len(ranks))


def _shown(group: JobGroup) -> list[int]:
    """The ranks that have a view: all that have a ledger, and the first of those that have none."""
    return sorted([*group.members, *group.missing[:RANKS_SHOWN]])


def left_out(group: JobGroup) -> int:
    """How many ranks have no view."""
    return max(0, len(group.missing) - RANKS_SHOWN)


def boundary_view(boundary: Boundary | None) -> BoundaryView | None:
    return BoundaryView(boundary.name, boundary.n, boundary.step) if boundary else None


def shared_view(group: JobGroup) -> BoundaryView | None:
    return boundary_view(last_shared(group))


def passed(ledgers: Sequence[Ledger]) -> dict[str, dict[str, int]]:
    """Per side and role, how many boundaries of each name all its processes have passed."""
    roles: dict[str, list[dict[str, int]]] = {}
    for ledger in ledgers:
        if ledger.process:
            roles.setdefault(f"{ledger.process.side} {ledger.process.role}", []).append(ledger.passed)
    return {
        role: {name: min(p.get(name, 0) for p in each) for name in dict.fromkeys(n for p in each for n in p)}
        for role, each in roles.items()
    }


def span_text(difference: Difference) -> str:
    parts = []
    if difference.agreed:
        parts.append(f"after {difference.agreed.name} {difference.agreed.n}")
    if difference.boundary:
        parts.append(f"by {difference.boundary.name} {difference.boundary.n}")
    return f", {' and '.join(parts)}" if parts else ""


def hang_views(hang: Hang, groups: Sequence[JobGroup], now: float, at: float) -> tuple[RankView, ...]:
    """One view per rank of the group that hangs, by the pulses in force at time `at`."""
    views = []
    names = {(id(m.ledger), m.g): group.name for group in groups for m in group.members.values()}
    for rank in _shown(hang.group):
        member = hang.group.members.get(rank)
        if member is None:
            views.append(RankView(rank, "no ledger", "missing"))
            continue
        wait = hang.waits.get(rank)
        state: RankState = "waiting" if rank in hang.waiting else "absent" if rank in hang.absent else "done"
        views.append(
            _view(
                member,
                state,
                now,
                at,
                issued=member.issued,
                operation=_awaited(member, wait),
                elsewhere=_elsewhere(member, names, at) if state == "absent" else None,
            )
        )
    return tuple(views)


def parted_views(hung: Sequence[RankView], parted: Sequence[RankView]) -> tuple[RankView, ...]:
    """Views of ranks that hang, changed to show what each issued where they had parted (`parted`)."""
    views = []
    for view, at in zip(hung, parted, strict=True):
        state = at.state if view.state in ("absent", "done") else view.state
        elsewhere = view.waits_elsewhere
        if view.operation:  # it waits in the group
            elsewhere = f"in {view.operation}" if view.operation != at.operation else None
        views.append(replace(view, state=state, operation=at.operation, waits_elsewhere=elsewhere))
    return tuple(views)


def difference_views(difference: Difference, now: float) -> tuple[RankView, ...]:
    """One view per rank of the group that differs."""
    group, seq = difference.group, difference.seq
    views = []
    for rank in _shown(group):
        member = group.members.get(rank)
        if member is None:
            views.append(RankView(rank, "no ledger", "missing"))
            continue
        issued: Operation | None = difference.issued.get(rank)
        operation = operation_text(issued, seq) if issued and seq is not None else None
        state = _state(difference, rank, member)
        count = difference.counts.get(rank, member.issued)
        views.append(_view(member, state, now, now, issued=count, operation=operation, elsewhere=None))
    return tuple(views)


def _awaited(member: Member, wait: Waiting | None) -> str | None:
    if wait is None:
        return None
    known = operation_at(member, wait.seq) if wait.op is None else None
    return operation_text(known or wait, wait.seq)


def _state(difference: Difference, rank: int, member: Member) -> RankState:
    if rank in difference.absent:
        return "absent"
    wait = member.ledger.waiting_at(member.ledger.last_t)
    if difference.boundary is None and wait and wait.g == member.g:
        return "waiting"
    if rank in difference.odd or not (difference.odd or difference.absent):
        return "differs"
    return "done"


def _view(
    member: Member,
    state: RankState,
    now: float,
    at: float,
    *,
    issued: int,
    operation: str | None,
    elsewhere: str | None,
) -> RankView:
    ledger = member.ledger
    assert ledger.process is not None
    pulse = ledger.pulse_at(at)
    wait = ledger.waiting_at(at)
    return RankView(
        member.rank,
        ledger.label,
        state,
        pid=ledger.process.pid,
        host=ledger.process.host,
        issued=issued,
        completed=member.completed,
        operation=operation,
        issued_at=wait.at if wait and wait.g == member.g else None,
        where=innermost(pulse),
        park=pulse.park if pulse else None,
        blocked=pulse.blocked if pulse else None,
        silent_s=silent_for(ledger, now),
        ended=_ended(ledger, at),
        waits_elsewhere=elsewhere,
    )


def _ended(ledger: Ledger, at: float) -> bool:
    """Whether it had ended by then; who was told to end with everyone else, at the last, had not."""
    if ledger.ended is None or ledger.ended > at:
        return False
    return not told(ledger) or ledger.ended < at - PULSE_S


def _elsewhere(member: Member, names: Mapping[tuple[int, int], str], at: float) -> str | None:
    wait = member.ledger.waiting_at(at)
    if wait is None:
        boundary = open_boundary(member.ledger)
        return (
            f"for the rollout (inside {boundary.name.removesuffix(' begin')} {boundary.n})"
            if boundary
            else None
        )
    name = names.get((id(member.ledger), wait.g))
    where = f" of group {name}" if name and wait.g != member.g else ""
    return f"in {operation_text(wait, wait.seq)}{where}"
