"""Dumps into ledgers and the groups that their ranks share, in the terms in which a verdict is made."""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

from lockstep.record import Group, Ledger, Mark, Problem, ProcessLine, Pulse, Waiting
from lockstep.verdict.groups import JobGroup, Member

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

    def global_rank(self, group: JobGroup, rank: int) -> int:
        return group.ranks[rank]


def build(found: DumpSet) -> Job:
    job = Job()
    for error in found.failed:
        place = f"byte {error.place}: " if error.place is not None else ""
        job.problems.append(Problem(error.path, None, f"cannot be read: {place}{error.what}"))
    worlds: dict[str, list[Dump]] = defaultdict(list)
    for dump in found.dumps:
        worlds[dump.prefix].append(dump)
    operations = dict(enumerate(found.operations.by_number))
    for prefix, dumps in worlds.items():
        _World(job, prefix if len(worlds) > 1 else "", dumps, operations).add()
    return job


class _World:
    """The dumps of one prefix: their ranks count in one world."""

    def __init__(self, job: Job, label: str, dumps: list[Dump], operations: dict[int, Any]) -> None:
        self.job = job
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

    def add(self) -> None:
        names: dict[tuple[str, tuple[int, ...]], int] = {}
        for key, ranks in sorted(self._found(), key=lambda item: (_order(item[0]), item[1])):
            if len(ranks) < 2:
                continue
            name = self._name(key)
            same = names[name, ranks] = names.get((name, ranks), 0) + 1
            self._group(key, ranks, name if same == 1 else f"{name}#{same}")
        for ledger in self.ledgers.values():
            _wait(self.job, ledger)

    def _name(self, key: GroupKey) -> str:
        name = key.desc or (f"group {key.name}" if key.name else f"unnamed group {key.number}")
        return f"{self.label}{name}"

    def _found(self) -> set[tuple[GroupKey, tuple[int, ...]]]:
        """Every group that a dump has a record of, with its members."""
        found = set()
        unknown: dict[GroupKey, list[int]] = defaultdict(list)
        for rank, dump in self.dumps.items():
            for key in dump.traces:
                ranks = dump.ranks.get(key.name)
                if ranks is None:
                    unknown[key].append(rank)
                else:
                    found.add((key, ranks))
        for key, all_recorders in unknown.items():
            # A peer may know the ranks where this one does not.
            told = {rank for other, ranks in found if other == key for rank in ranks}
            recorders = [rank for rank in all_recorders if rank not in told]
            if not recorders:
                continue
            ranks = tuple(range(max(self.dumps) + 1)) if key.desc == DEFAULT else tuple(sorted(recorders))
            found.add((key, ranks))
            if len(ranks) > 1:
                self.job.assumed.append(self._name(key))
        return found

    def _group(self, key: GroupKey, ranks: tuple[int, ...], name: str) -> None:
        group = JobGroup(name, ranks, key.name or str(key.number), "")
        g = len(self.job.groups)
        for place, rank in enumerate(ranks):
            dump, ledger = self.dumps.get(rank), self.ledgers.get(rank)
            if dump is None or ledger is None:
                continue
            trace = dump.traces.get(key)
            if trace is None or dump.ranks.get(key.name, ranks) != ranks:
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
        absent = [ranks[place] for place in group.missing if ranks[place] not in self.dumps]
        for rank in absent:
            self.job.problems.append(
                Problem(None, None, f"group {name}: no dump of rank {rank} of {len(ranks)}")
            )
        self.job.groups.append(group)
        _marks(self.job, group, g)


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
