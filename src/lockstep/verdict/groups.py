"""Ledgers of single processes into the groups that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.record import Ledger, Mark, Problem


@dataclass(frozen=True)
class Member:
    """One rank of a group: its process's ledger and the group's number in there."""

    rank: int
    ledger: Ledger
    g: int

    @property
    def issued(self) -> int:
        return self.ledger.issued.get(self.g, 0)

    @property
    def recorded(self) -> int:
        """Up to which number it is known what was issued."""
        marks = self.marks
        return marks[-1].count if marks else 0

    @property
    def marks(self) -> list[Mark]:
        """Those of its boundaries and, last, what a pulse has told since; oldest first."""
        marks = self.ledger.marks.get(self.g, [])
        tail = self.ledger.tails.get(self.g)
        return [*marks, tail] if tail else marks

    @property
    def completed(self) -> int:
        return self.ledger.completed.get(self.g, 0)

    @property
    def cohort(self) -> tuple[str, str]:
        """Side and role: processes with the same one pass the same boundaries."""
        assert self.ledger.process is not None
        return self.ledger.process.side, self.ledger.process.role


@dataclass
class JobGroup:
    name: str
    ranks: tuple[int, ...]
    lib: str
    backend: str
    members: dict[int, Member] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(len(self.ranks)) if rank not in self.members]

    @property
    def side(self) -> str:
        sides = {member.cohort[0] for member in self.members.values()}
        return sides.pop() if len(sides) == 1 else "both"

    @property
    def cohorts(self) -> list[list[Member]]:
        found: dict[tuple[str, str], list[Member]] = {}
        for _, member in sorted(self.members.items()):
            found.setdefault(member.cohort, []).append(member)
        return list(found.values())


def order(ledgers: Sequence[Ledger]) -> list[Ledger]:
    """By side, role, rank and start, whatever order the files came in. Files without a process line are left
    out.
    """

    def key(ledger: Ledger) -> tuple[str, str, int, float, int, str]:
        process = ledger.process
        assert process is not None
        return process.side, process.role, process.rank, process.t, process.pid, ledger.path

    return sorted((ledger for ledger in ledgers if ledger.usable), key=key)


def gather(ordered: Sequence[Ledger]) -> tuple[list[JobGroup], list[Problem]]:
    """All groups by name, and what keeps them from being whole: ranks without a ledger, or with two."""
    groups: dict[tuple[str, tuple[int, ...]], JobGroup] = {}
    problems = []
    for ledger in ordered:
        for g, group in sorted(ledger.groups.items()):
            known = groups.setdefault(
                (group.name, group.ranks), JobGroup(group.name, group.ranks, group.lib, group.backend)
            )
            if group.rank in known.members:
                first = known.members[group.rank].ledger.path
                what = f"group {group.name}: rank {group.rank} has another ledger, {first}: expected one"
                problems.append(Problem(ledger.path, None, what))
            known.members[group.rank] = Member(group.rank, ledger, g)
    found = [groups[key] for key in sorted(groups)]
    for job_group in found:
        for rank in job_group.missing:
            what = f"group {job_group.name}: no ledger of rank {rank} of {len(job_group.ranks)}"
            problems.append(Problem(None, None, what))
        problems += _of_other_rules(job_group)
    return found, problems


def _of_other_rules(group: JobGroup) -> list[Problem]:
    """Takes members out whose records were turned into operations by older rules than their peers': their
    operations and digests cannot be compared.
    """
    newest = max(_rules(member) for member in group.members.values())
    older = [member for member in group.members.values() if _rules(member) < newest]
    for member in older:
        del group.members[member.rank]
    what = f"by rules {newest}, as its peers have them: ranks ran different releases of Lockstep"
    return [
        Problem(
            m.ledger.path, 1, f"group {group.name}: operations by rules {_rules(m)}: expected them {what}"
        )
        for m in older
    ]


def _rules(member: Member) -> int:
    assert member.ledger.process is not None
    return member.ledger.process.rules
