"""Which groups of a job must have counted something, so that "in step" says something.

Without this a probe that sees nothing (another release's groups, a recorder that is off) would find every job
in step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockstep.record import Ledger
from lockstep.verdict.groups import gather, order


def silent(groups: Iterable[str], ledgers: Sequence[Ledger]) -> str:
    """Which of `groups` have counted nothing on a rank, in words; empty if all have."""
    there = {group.name: group for group in gather(order(ledgers))[0]}
    told = []
    for name in groups:
        if name not in there:
            told.append(f"there is no group {name}")
            continue
        group = there[name]
        counted = [rank for rank, member in group.members.items() if member.issued]
        if idle := [rank for rank in range(len(group.ranks)) if rank not in counted]:
            told.append(f"group {name} has counted nothing on rank {', '.join(map(str, idle))}")
    return f"{'; '.join(told)}: what the probe does not see cannot be in step" if told else ""
