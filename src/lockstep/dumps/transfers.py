"""Sends and receives: one side waits and the other has not come."""

from __future__ import annotations

from lockstep.record import Operation
from lockstep.verdict import RankView
from lockstep.verdict.groups import JobGroup
from lockstep.verdict.sentence import group_text, operation_text
from lockstep.verdict.views import group_view

from .ledgers import Job
from .model import Open

_OTHER = {"send": "recv", "recv": "send"}


Transfer = tuple[JobGroup, str, tuple[RankView, ...]]
"""The group, what is wrong in a sentence, and the two ranks, the one that waits first."""


def waiting_text(job: Job) -> str:
    """The first sends and receives that wait, of a job in which both sides have come."""
    texts = []
    for g, group in enumerate(job.groups):
        for rank, member in sorted(group.members.items()):
            for o in job.traces[id(member.ledger), g].transfers[:1]:
                what = operation_text(member.ledger.ops[o.call], o.seq)
                texts.append(f"rank {job.global_rank(group, rank)} waits in {what} of group {group.name}")
    return "; ".join(texts[:4]) + (f"; and {len(texts) - 4} more" if len(texts) > 4 else "")


def one_sided(job: Job) -> Transfer | None:
    """The first send or receive that waits while its peer, which has a dump, waits in none that fits it."""
    for g, group in enumerate(job.groups):
        facing = _first_of_each(job, group, g)
        for rank, member in sorted(group.members.items()):
            for waiting in job.traces[id(member.ledger), g].transfers:
                peer = group.members.get(waiting.peer) if waiting.peer is not None else None
                operation = member.ledger.ops[waiting.call]
                if (
                    peer is None
                    or peer.rank == rank
                    or operation.op not in _OTHER
                    or job.damaged(peer.ledger)
                ):
                    continue
                theirs = facing.get((peer.rank, rank, _OTHER[operation.op]), {})
                if (operation.n, operation.dtype) not in theirs:
                    first = next(iter(theirs.values()), None)
                    return group, *_told(job, group, (rank, waiting, operation), (peer.rank, first))
    return None


_Waiting = tuple[Open, Operation]


def _first_of_each(
    job: Job, group: JobGroup, g: int
) -> dict[tuple[int, int, str], dict[tuple[int | None, str], _Waiting]]:
    """By rank, its peer, and `send` or `recv`: the first that waits of each size and type, in order."""
    found: dict[tuple[int, int, str], dict[tuple[int | None, str], _Waiting]] = {}
    for rank, member in group.members.items():
        for waiting in job.traces[id(member.ledger), g].transfers:
            if waiting.peer is not None:
                operation = member.ledger.ops[waiting.call]
                each = found.setdefault((rank, waiting.peer, operation.op), {})
                each.setdefault((operation.n, operation.dtype), (waiting, operation))
    return found


def _told(
    job: Job,
    group: JobGroup,
    mine: tuple[int, Open, Operation],
    theirs: tuple[int, _Waiting | None],
) -> tuple[str, tuple[RankView, ...]]:
    rank, waiting, operation = mine
    peer, facing = theirs
    me, other = job.global_rank(group, rank), job.global_rank(group, peer)
    text = operation_text(operation, waiting.seq)
    at = f", issued at {waiting.at}" if waiting.at else ""
    to = "to" if operation.op == "send" else "from"
    if facing:
        opposite = operation_text(facing[1], facing[0].seq)
        what = f"rank {other} waits in {opposite}"
        view = RankView(peer, f"rank {other}", "differs", operation=opposite, issued_at=facing[0].at)
    else:
        what = f"rank {other} has no {_OTHER[operation.op]} that waits for it"
        view = RankView(peer, f"rank {other}", "absent")
    views = (RankView(rank, f"rank {me}", "waiting", operation=text, issued_at=waiting.at), view)
    return f"{group_text(group_view(group))}: rank {me} waits in {text} {to} rank {other}{at}; {what}", views
