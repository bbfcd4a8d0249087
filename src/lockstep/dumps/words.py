"""The verdict's sentences for dumps. Ranks in them are those of the job, as in the files' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lockstep.verdict import RankView
from lockstep.verdict.groups import JobGroup, ranks_text
from lockstep.verdict.sentence import group_text
from lockstep.verdict.views import group_view

from .ledgers import Job

_CLAUSES = 4


def rank_views(job: Job, group: JobGroup, views: Sequence[RankView]) -> tuple[RankView, ...]:
    """Views with what a dump has to say: no process id, and for a rank that is absent the line that issued
    its last call.
    """
    told = []
    for view in views:
        member = group.members.get(view.rank)
        trace = job.traces.get((id(member.ledger), member.g)) if member else None
        at = trace.last_at if trace and view.state == "absent" else view.issued_at
        process = f"rank {job.global_rank(group, view.rank)}" + ("" if member else f", {job.lacking}")
        state = view.state
        if state == "done" and member and job.damaged(member.ledger):
            state, process = "missing", f"{process}, {job.lacking}"
        told.append(replace(view, process=process, pid=None, host=None, issued_at=at, state=state))
    return tuple(told)


def hang_sentence(
    job: Job, group: JobGroup, seq: int, views: Sequence[RankView], *, queued: bool = False
) -> str:
    """Who waits where and who is absent. `queued`: the absent have number `seq` in their queue, behind
    another group's.
    """
    clauses: dict[tuple[int, str, str], list[int]] = {}
    for view in views:
        clause = _hang_clause(view, seq, queued, job.lacking)
        clauses.setdefault(clause, []).append(job.global_rank(group, view.rank))
    ordered = sorted(clauses.items(), key=lambda item: (item[0][0], -len(item[1]), item[1]))
    told = _join([(one, many, ranks) for (_, one, many), ranks in ordered])
    return f"{group_text(group_view(group))}: {told}"


def _hang_clause(view: RankView, seq: int, queued: bool, lacking: str) -> tuple[int, str, str]:
    at = f" at {view.issued_at}" if view.issued_at else ""
    if view.state == "waiting":
        issued = f", issued{at}" if at else ""
        return 0, f"waits in {view.operation}{issued}", f"wait in {view.operation}{issued}"
    if view.state == "absent":
        elsewhere = view.waits_elsewhere
        if queued and elsewhere:
            return (
                1,
                f"waits {elsewhere} before it comes to #{seq}",
                f"wait {elsewhere} before they come to #{seq}",
            )
        last = f"#{view.issued}{at}" if view.issued else "none"
        one, many = (f", and waits {elsewhere}", f", and wait {elsewhere}") if elsewhere else ("", "")
        return (
            1,
            f"has not issued #{seq}: its last is {last}{one}",
            f"have not issued #{seq}: their last is {last}{many}",
        )
    if view.state == "missing":
        return 3, f"has {lacking}", f"have {lacking}"
    return 2, "is past it, or waits in another group", "are past it, or wait in other groups"


def difference_sentence(job: Job, group: JobGroup, views: Sequence[RankView], seq: int | None) -> str:
    """What each rank issued where they part, most ranks first."""
    clauses: dict[str, list[int]] = {}
    for view in views:
        if view.state == "missing":
            clause = job.lacking
        elif view.operation is None:
            clause = (
                f"issued {view.issued}"
                if seq is None or (view.issued or 0) < seq
                else f"issued #{seq}, not recorded"
            )
        else:
            clause = f"issued {view.operation}"
        clauses.setdefault(clause, []).append(group.ranks[view.rank])
    return _join(
        [(text, text, ranks) for text, ranks in sorted(clauses.items(), key=lambda item: -len(item[1]))]
    )


def _join(clauses: Sequence[tuple[str, str, list[int]]]) -> str:
    texts = [
        f"{ranks_text(ranks)} {many if len(ranks) > 1 else one}" for one, many, ranks in clauses[:_CLAUSES]
    ]
    if len(clauses) > _CLAUSES:
        texts.append(f"and {sum(len(ranks) for _, _, ranks in clauses[_CLAUSES:])} ranks more")
    return "; ".join(texts)
