"""Who waits for whom, and which group is the root of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lockstep.record import Boundary, Ledger, Waiting

from .groups import JobGroup, Member, ranks_text

_WAITS_FOR_ROLLOUT = ("generate", "weight sync")


@dataclass(frozen=True)
class Hang:
    """A group in which ranks wait in collective number `seq` that others have not issued, or issued
    otherwise.
    """

    group: JobGroup
    seq: int
    waits: dict[int, Waiting]  # by rank, of those that wait in this group, whatever the number
    absent: tuple[int, ...]  # ranks with a ledger that have issued fewer than `seq`

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        absent = frozenset(self.absent)
        return tuple(rank for rank in sorted(self.waits) if rank not in absent)


@dataclass(frozen=True)
class Cause:
    """The root of the waiting, if a group's ranks differ on their own account, and what follows from it."""

    root: Hang | None
    consequences: tuple[str, ...]


def open_boundary(ledger: Ledger) -> Boundary | None:
    """The `generate` or `weight sync` that the trainer's rank 0 is in, begun and not ended, if any.

    It waits for the rollout there. The others pass these boundaries too, but only rank 0 talks to the server.
    """
    process = ledger.process
    if process is None or (process.side, process.rank) != ("trainer", 0):
        return None
    for name in _WAITS_FOR_ROLLOUT:
        begun = ledger.passed.get(f"{name} begin", 0)
        if begun > ledger.passed.get(f"{name} end", 0):
            return next(b for b in reversed(ledger.boundaries) if b.name == f"{name} begin")
    return None


def find(
    groups: Sequence[JobGroup], ledgers: Sequence[Ledger], at: float, differing: Sequence[JobGroup] = ()
) -> Cause:
    """The cause of the waiting as the pulses in force at time `at` tell it.

    Where groups wait for each other, those in `differing`, which have differed at a boundary, come first.
    """
    hangs = {id(group): hang for group in groups if (hang := _hang(group, at))}
    graph = _Graph(hangs, at, differing)
    root = graph.root()
    told = [graph.tell(hang) for hang in hangs.values() if hang is not root]
    trainers_told = any(hang.group.side == "trainer" for hang in hangs.values() if hang is not root)
    if not trainers_told:
        told += [
            f"{ledger.label} waits for the rollout (inside {_inside(boundary)})"
            for ledger in ledgers
            if (boundary := open_boundary(ledger)) and ledger.waiting_at(at) is None
        ]
    return Cause(root, tuple(told))


def _hang(group: JobGroup, at: float) -> Hang | None:
    waits = {}
    for rank, member in sorted(group.members.items()):
        wait = member.ledger.waiting_at(at)
        if wait and wait.g == member.g:
            waits[rank] = wait
    operations: dict[int, set[tuple[str, str, int | None]]] = {}
    for w in waits.values():
        operations.setdefault(w.seq, set()).update([(w.op, w.dtype, w.n)] if w.op else [])
    fewest = min((member.issued for member in group.members.values()), default=0)
    for seq in sorted(operations):
        if fewest < seq or len(operations[seq]) > 1:
            absent = tuple(rank for rank, member in sorted(group.members.items()) if member.issued < seq)
            return Hang(group, seq, waits, absent)
    return None


class _Graph:
    """Groups that hang, with an edge to each group, or the rollout, that their absent ranks wait for."""

    def __init__(self, hangs: dict[int, Hang], at: float, differing: Sequence[JobGroup]) -> None:
        self._hangs = hangs
        self._at = at
        self._differing = {id(group) for group in differing}
        self._known: dict[int, list[Hang | Boundary] | None] = {}
        self._by_place = {
            (id(m.ledger), m.g): hang for hang in hangs.values() for m in hang.group.members.values()
        }

    def _elsewhere(self, hang: Hang, member: Member) -> Hang | Boundary | None:
        """What an absent rank waits for instead; None if it has a reason of its own."""
        wait = member.ledger.waiting_at(self._at)
        if wait:
            other = self._by_place.get((id(member.ledger), wait.g))
            return other if other is not hang else None
        return open_boundary(member.ledger) if hang.group.side == "trainer" else None

    def _edges(self, hang: Hang) -> list[Hang | Boundary] | None:
        """None for a group with at least one rank that is absent, or at odds with its peers, on its own
        account.
        """
        if id(hang) not in self._known:
            edges = [self._elsewhere(hang, hang.group.members[rank]) for rank in hang.absent]
            known = [edge for edge in edges if edge] if edges and all(edges) else None
            self._known[id(hang)] = known
        return self._known[id(hang)]

    def root(self) -> Hang | None:
        own = [hang for hang in self._hangs.values() if self._edges(hang) is None]
        if own:
            return min(own, key=lambda h: (h.group.side == "trainer", *self._rank(h)))
        # Every group waits for another one: in a circle, or in the end for a rollout that does not differ.
        # A rank that left a group's order is absent from that group and waits alone in the next one.
        ordered = sorted(self._hangs.values(), key=self._rank)
        return next((hang for hang in ordered if self._circular(hang)), None)

    def _rank(self, hang: Hang) -> tuple[bool, int, str, tuple[int, ...]]:
        group = hang.group
        return id(group) not in self._differing, len(hang.absent), group.name, group.ranks

    def _circular(self, hang: Hang) -> bool:
        reached: dict[int, Hang] = {}
        todo = [hang]
        while todo:
            for edge in self._edges(todo.pop()) or []:
                if isinstance(edge, Boundary):
                    return False
                if id(edge) not in reached:
                    reached[id(edge)] = edge
                    todo.append(edge)
        return id(hang) in reached

    def tell(self, hang: Hang) -> str:
        waiting = ranks_text(hang.waiting)
        verb = "wait" if len(hang.waiting) > 1 else "waits"
        if not hang.absent:
            return f"{hang.group.name}: {waiting} {verb}, each in another collective"
        parts = [f"{hang.group.name}: {waiting} {verb} for {ranks_text(hang.absent)}"]
        reasons = []
        which = "which wait" if len(hang.absent) > 1 else "which waits"
        for rank in hang.absent:
            edge = self._elsewhere(hang, hang.group.members[rank])
            if isinstance(edge, Boundary):
                reasons.append(f"{which} for the rollout (inside {_inside(edge)})")
            elif edge is not None:
                reasons.append(f"{which} in {edge.group.name}")
        return ", ".join(parts + sorted(set(reasons)))


def _inside(boundary: Boundary) -> str:
    return f"{boundary.name.removesuffix(' begin')} {boundary.n}"
