"""Trainer ranks that pass different boundaries: one evaluates on while another one trains, say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.record import Boundary, Ledger

from .compare import Difference
from .groups import JobGroup, ranks_text
from .model import RankView


@dataclass(frozen=True)
class Ways:
    """The first boundary at which the ranks of a group went different ways, by rank."""

    group: JobGroup
    passed: dict[int, Boundary]
    agreed: Boundary | None

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that went another way than most; none where there is no majority."""
        kinds = {rank: boundary.name for rank, boundary in self.passed.items()}
        most, votes = Counter(kinds.values()).most_common(1)[0]
        return tuple(r for r, kind in sorted(kinds.items()) if kind != most) if votes * 2 > len(kinds) else ()

    @property
    def difference(self) -> Difference:
        counts = {rank: member.issued for rank, member in self.group.members.items()}
        t = min(boundary.t for boundary in self.passed.values())
        return Difference(self.group, t, counts, None, {}, None, self.agreed)

    def show(self, views: Sequence[RankView]) -> tuple[RankView, ...]:
        """Each rank with the boundary that it passed in place of an operation."""
        return tuple(
            replace(
                view,
                operation=str(self.passed[view.rank]) if view.rank in self.passed else None,
                state="differs" if view.rank in self.odd or not self.odd else "done",
            )
            for view in views
        )

    @property
    def text(self) -> str:
        ways: dict[str, list[int]] = {}
        for rank, boundary in sorted(self.passed.items()):
            ways.setdefault(str(boundary), []).append(rank)
        told = "; ".join(f"{ranks_text(ranks)} passed {name}" for name, ranks in ways.items())
        return f"its ranks went different ways{f' after {self.agreed}' if self.agreed else ''}: {told}"


def ways(groups: Sequence[JobGroup], trainers: Sequence[Ledger]) -> Ways | None:
    """Where the boundaries of the trainer's ranks part, told of a group that all of them are in.

    Ranks pass the same boundaries in the same order; one that ended early has passed fewer, which is no
    difference. Ledgers with unreadable lines prove nothing.
    """
    whole = [
        group for group in groups if {id(m.ledger) for m in group.members.values()} == set(map(id, trainers))
    ]
    if not whole or any(ledger.gaps for ledger in trainers):
        return None
    members = whole[0].members
    for index in range(max(len(ledger.boundaries) for ledger in trainers)):
        here = {
            rank: m.ledger.boundaries[index]
            for rank, m in members.items()
            if index < len(m.ledger.boundaries)
        }
        if len({(boundary.name, boundary.n) for boundary in here.values()}) > 1:
            before = next(iter(members.values())).ledger.boundaries[index - 1] if index else None
            return Ways(whole[0], here, before)
    return None
