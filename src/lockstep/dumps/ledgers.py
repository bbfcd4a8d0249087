"""Dumps into ledgers and the groups that their ranks share, in the terms in which a verdict is made."""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

from lockstep.record import Group, Ledger, Mark, Problem, ProcessLine, Pulse, Waiting
from lockstep.verdict.groups import JobGroup, Member, ranks_text

from .errors import MAX_MEMBERS, MAX_RANKS, DumpError
from .model import Dump, GroupKey, Open, Trace
from .read import DumpSet

DEFAULT = "default_pg"


@dataclass
class Job:
    """The processes of one or several dumps' prefixes, and their groups of two ranks or more."""

    ledgers: list[Ledger] = field(default_factory=list)
    groups: list[JobGroup] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    traces: dict[tuple[int, int], Trace] = field(
        default_factory=dict
    )  # by id of the ledger and number of the group
    assumed: list[str] = field(default_factory=list)  # groups whose members are taken from who recorded them
    dumps: dict[int, Dump] = field(default_factory=dict)  # by id of the ledger
    lacking: str = "no dump"  # how a rank is called that is not here

    def damaged(self, ledger: Ledger) -> bool:
        """Whether more may have been in a process's dump than could be read."""
        return self.dumps[id(ledger)].damage is not None

    def global_rank(self, group: JobGroup, rank: int) -> int:
        return group.ranks[rank]


def build(found: DumpSet, *, damaged: bool = False) -> Job:
    """The processes and groups of the dumps; those that are damaged are left out unless `damaged` is set."""
    job = Job(lacking="no whole dump" if found.damaged else "no dump")
    job.problems += [
        Problem(error.path, None, f"cannot be read: {_at(error)}{error.what}") for error in found.failed
    ]
    job.problems += [
        Problem(dump.path, None, f"damaged: {_at(error)}{error.what}; {dump.records} records were read")
        for dump in found.damaged
        if (error := dump.damage)
    ]
    worlds: dict[str, list[Dump]] = defaultdict(list)
    for dump in [*found.dumps, *(found.damaged if damaged else ())]:
        worlds[dump.prefix].append(dump)
    operations = dict(enumerate(found.operations.by_number))
    left = _Left(MAX_MEMBERS)
    for prefix, dumps in worlds.items():
        _World(job, prefix if len(worlds) > 1 else "", dumps, operations, left).add()
    if left.groups:
        what = f"{left.groups} groups are left out: expected {MAX_MEMBERS} ranks in all groups together"
        job.problems.append(Problem(None, None, what))
    return job


def _at(error: DumpError) -> str:
    return f"byte {error.place}: " if error.place is not None else ""


@dataclass
class _Left:
    """How many ranks groups may still have, and how many groups were left out for it."""

    members: int
    groups: int = 0


class _World:
    """The dumps of one prefix: their ranks count in one world."""

    def __init__(
        self, job: Job, label: str, dumps: list[Dump], operations: dict[int, Any], left: _Left
    ) -> None:
        self.job = job
        self.left = left
        self.label = label
        self.operations = operations
        self.dumps: dict[int, Dump] = {}
        self.ledgers: dict[int, Ledger] = {}
        for dump in dumps:
            if dump.rank in self.dumps:
                job.problems.append(
                    Problem(dump.path, None, f"a second dump of rank {dump.rank}: expected one")
                )
                continue
            self.dumps[dump.rank] = dump
            ledger = Ledger(dump.path, ops=operations, last_t=0.0)
            ledger.process = ProcessLine(1, 0.0, cast(Any, label or "job"), "rank", dump.rank, 0)
            self.ledgers[dump.rank] = ledger
            job.ledgers.append(ledger)
            job.dumps[id(ledger)] = dump
        self._lists: dict[tuple[int, ...], tuple[int, ...]] = {}
        size = max(self.dumps) + 1
        if size > MAX_RANKS:
            what = f"a dump of rank {size - 1}: expected ranks below {MAX_RANKS}; those between have none"
            job.problems.append(Problem(self.dumps[size - 1].path, None, what))
        self._world = self._once(tuple(range(size) if size <= MAX_RANKS else sorted(self.dumps)))

    def add(self) -> None:
        names: dict[tuple[str, int], int] = {}
        for key, ranks in sorted(self._found(), key=lambda item: (_order(item[0]), item[1])):
            if len(ranks) < 2:
                continue
            self.left.members -= len(ranks)
            if self.left.members < 0:
                self.left.groups += 1
                continue
            name = self._name(key)
            same = names[name, id(ranks)] = names.get((name, id(ranks)), 0) + 1
            self._group(key, ranks, name if same == 1 else f"{name}#{same}")
        for ledger in self.ledgers.values():
            _wait(self.job, ledger)

    def _once(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        return self._lists.setdefault(ranks, ranks)

    def _name(self, key: GroupKey) -> str:
        name = key.desc or (f"group {key.name}" if key.name else f"unnamed group {key.number}")
        return f"{self.label}{name}"

    def _found(self) -> list[tuple[GroupKey, tuple[int, ...]]]:
        """Every group that a dump has a record of, with its members.

        Equal lists of members are one object, and are told apart by it: to hash or compare them for every
        group and dump would take too long.
        """
        told: dict[GroupKey, dict[int, tuple[int, ...]]] = defaultdict(dict)
        unknown: dict[GroupKey, list[int]] = defaultdict(list)
        for rank, dump in self.dumps.items():
            for key in dump.traces:
                ranks = dump.ranks.get(key.name)
                if ranks is None:
                    unknown[key].append(rank)
                else:
                    told[key][id(ranks)] = ranks
        found = [(key, ranks) for key, lists in told.items() for ranks in lists.values()]
        unions: dict[frozenset[int], set[int]] = {}
        for key, all_recorders in unknown.items():
            # A peer may know the ranks where this one does not.
            lists = told.get(key, {})
            union = frozenset(lists)
            if union not in unions:
                unions[union] = set().union(*lists.values())
            recorders = [rank for rank in all_recorders if rank not in unions[union]]
            if not recorders:
                continue
            ranks = self._world if key.desc == DEFAULT else self._once(tuple(sorted(recorders)))
            found.append((key, ranks))
            if len(ranks) > 1:
                self.job.assumed.append(self._name(key))
        return found

    def _group(self, key: GroupKey, ranks: tuple[int, ...], name: str) -> None:
        group = JobGroup(name, ranks, key.name or str(key.number), "")
        g = len(self.job.groups)
        absent = []
        for place, rank in enumerate(ranks):
            dump, ledger = self.dumps.get(rank), self.ledgers.get(rank)
            if dump is None or ledger is None:
                absent.append(rank)
                continue
            trace = dump.traces.get(key)
            if trace is None or dump.ranks.get(key.name, ranks) is not ranks:
                if not dump.whole:
                    self.job.problems.append(
                        Problem(
                            dump.path,
                            None,
                            f"group {name}: no record: its last ones may have been overwritten",
                        )
                    )
                    continue
                trace = Trace(key, "")
            group.backend = group.backend or trace.backend
            ledger.groups[g] = Group(g, name, key.name, trace.backend, ranks, place)
            ledger.issued[g] = trace.last
            ledger.completed[g] = min((o.seq for o in trace.open), default=trace.last + 1) - 1
            ledger.issued_since[g] = 0.0
            self.job.traces[id(ledger), g] = trace
            group.members[place] = Member(place, ledger, g)
        if absent:
            what = f"group {name}: {self.job.lacking} of {ranks_text(absent)} of {len(ranks)}"
            self.job.problems.append(Problem(None, None, what))
        self.job.groups.append(group)
        _marks(self.job, group, g)
        issued = max((member.issued for member in group.members.values()), default=0)
        for member in group.members.values():
            if self.job.damaged(member.ledger):  # its last calls are not known: it lacks none of them
                member.ledger.issued[g] = issued


def _order(key: GroupKey) -> tuple[int, str, str, int]:
    return (
        int(key.name) if key.name.isdigit() and len(key.name) < 10 else 1 << 30,
        key.name,
        key.desc,
        key.number or 0,
    )


def common(job: Job, group: JobGroup, g: int) -> tuple[int, int]:
    """The first and last number that every member with records has a record of; the last is less where there
    is none.
    """
    traces = [job.traces[id(m.ledger), g] for m in group.members.values()]
    recorded = [trace for trace in traces if trace.calls]
    return max((t.first for t in recorded), default=1), min((t.last for t in recorded), default=0)


def _marks(job: Job, group: JobGroup, g: int) -> None:
    """Notes what each member issued in the part that all have records of: a digest, and in full where digests
    differ.
    """
    first, last = common(job, group, g)
    if last < first:
        return
    issued: dict[int, tuple[str, array[int]]] = {}
    for place, member in group.members.items():
        trace = job.traces[id(member.ledger), g]
        if trace.calls:
            calls = array("q", trace.calls[first - trace.first : last - trace.first + 1])
            issued[place] = hashlib.blake2b(calls.tobytes(), digest_size=8).hexdigest(), calls
    alike = len({digest for digest, _ in issued.values()}) == 1
    for place, (digest, calls) in issued.items():
        stream = (
            None
            if alike
            else array("q", [n for op, run in groupby(calls) for n in (op, sum(1 for _ in run))])
        )
        marks = [Mark(0, first - 1, "", None, {}), Mark(0, last, digest, stream, {})]
        group.members[place].ledger.marks[g] = marks


def front(job: Job, ledger: Ledger) -> tuple[int, Open] | None:
    """The collective that holds a process up: the first that runs on the device; where that is not known, the
    first in line.
    """
    waiting = [(g, o) for g in ledger.groups for o in job.traces[id(ledger), g].open]
    running = [item for item in waiting if item[1].started]
    return min(running or waiting, key=lambda item: item[1].place, default=None)


def _wait(job: Job, ledger: Ledger) -> None:
    held = front(job, ledger)
    counts = {g: (ledger.issued[g], ledger.completed[g]) for g in ledger.groups}
    waiting = None
    if held:
        g, o = held
        operation = ledger.ops[o.call]
        waiting = Waiting(g, o.seq, operation.op, operation.dtype, operation.n, o.at)
    ledger.pulse = Pulse(0.0, counts, w=waiting)
