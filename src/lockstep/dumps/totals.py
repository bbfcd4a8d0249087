"""Operations in which ranks may exchange unequal shares: what all of them give is what all of them take."""

from __future__ import annotations

from lockstep.record import Operation
from lockstep.verdict.compare import Difference
from lockstep.verdict.groups import JobGroup

from .ledgers import Job, common


def uneven(job: Job, group: JobGroup, g: int) -> Difference | None:
    """The first all-to-all in which the elements that go in are not as many as those that come out, if every
    rank recorded it.
    """
    if group.missing:
        return None
    traces = {place: job.traces[id(member.ledger), g] for place, member in group.members.items()}
    first, last = common(job, group, g)
    seqs = [seq for seq in sorted(next(iter(traces.values())).uneven) if first <= seq <= last]
    for seq in seqs:
        shares = {place: trace.uneven[seq] for place, trace in traces.items() if seq in trace.uneven}
        given, taken = (sum(share[i] for share in shares.values()) for i in (0, 1))
        if len(shares) < len(traces) or given == taken:
            continue
        issued: dict[int, Operation | None] = {}
        for place, member in group.members.items():
            made = member.ledger.ops[traces[place].calls[seq - traces[place].first]]
            issued[place] = Operation(
                f"{made.op} ({_text(shares[place])}, of {given} and {taken})", made.dtype, None
            )
        counts = {place: member.issued for place, member in group.members.items()}
        return Difference(group, 0.0, counts, seq, issued, None, None)
    return None


def _text(share: tuple[int, int]) -> str:
    return f"gives {share[0]}, takes {share[1]}"
