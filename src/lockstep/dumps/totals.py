"""Operations in which ranks may exchange unequal shares: what all of them give is what all of them take."""

from __future__ import annotations

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
        shares = [trace.uneven.get(seq) for trace in traces.values()]
        if None not in shares and sum(s[0] for s in shares if s) != sum(s[1] for s in shares if s):
            counts = {place: member.issued for place, member in group.members.items()}
            issued = {
                place: member.ledger.ops[traces[place].calls[seq - traces[place].first]]
                for place, member in group.members.items()
            }
            given, taken = sum(s[0] for s in shares if s), sum(s[1] for s in shares if s)
            told = {place: op.__class__(f"{op.op} ({_share(traces[place].uneven[seq])}, {given} and {taken} in all)", op.dtype, None)
                    for place, op in issued.items()}  # fmt: skip
            return Difference(group, 0.0, counts, seq, dict(told), None, None)
    return None


def _share(share: tuple[int, int]) -> str:
    return f"gives {share[0]}, takes {share[1]}"
