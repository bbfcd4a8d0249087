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
class Work:
    """What comparing a job's boundaries has found and cost."""

    orders: dict[tuple[int, ...], bool] = field(default_factory=dict)
    """By a boundary's index and the ids of some ledgers, whether they pass the same ones in the same order
    from there on.
    """
    looked_at: int = 0
    """Boundaries, one by one for a group, where their order differs or lines are missing."""
    left_out: list[str] = field(default_factory=list)
    """Groups that are not compared at boundaries, since too many had been looked at."""


@dataclass
class JobGroup:
    name: str
    ranks: tuple[int, ...]
    lib: str
    backend: str
    members: dict[int, Member] = field(default_factory=dict)
    work: Work = field(default_factory=Work, repr=False)
    """All groups of a job share it."""

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


SPANS = 50
"""Runs of ranks that a text names; the rest is counted."""


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`; of very many runs the first."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans[:SPANS]]
    if len(spans) > SPANS:
        texts.append(f"and {sum(b - a + 1 for a, b in spans[SPANS:])} more")
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(texts)}"


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
    """All groups by name, and what keeps them from being whole: ranks without a ledger, or with two.

    Groups are the same where purpose, ranks and id are. The second one of a purpose with the same ranks, in
    the order of their ids, is named with a suffix.
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[str, JobGroup]] = {}
    work = Work()
    problems = []
    for ledger in ordered:
        for g, group in sorted(ledger.groups.items()):
            alike = groups.setdefault((group.purpose, group.ranks), {})
            known = alike.setdefault(
                group.id, JobGroup(group.purpose, group.ranks, group.lib, group.backend, work=work)
            )
            if group.rank in known.members:
                first = known.members[group.rank].ledger.path
                what = f"group {group.name}: rank {group.rank} has another ledger, {first}: expected one"
                problems.append(Problem(ledger.path, None, what))
            known.members[group.rank] = Member(group.rank, ledger, g)
    for alike in groups.values():
        for n, id in enumerate(sorted(alike, key=lambda id: (len(id), id)), 1):
            alike[id].name += f"#{n}" if n > 1 else ""
    found = sorted((x for alike in groups.values() for x in alike.values()), key=lambda x: (x.name, x.ranks))
    for job_group in found:
        if missing := job_group.missing:
            what = f"group {job_group.name}: no ledger of {ranks_text(missing)} of {len(job_group.ranks)}"
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
