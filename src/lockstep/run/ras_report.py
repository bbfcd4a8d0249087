"""What NCCL's RAS says of its communicators, from its two formats; and whether that fits a verdict.

Sources: `src/ras/client_support.cc` of NCCL 2.24.3, 2.27.3, 2.28.9, 2.29.7 and 2.30.7. The text is the same
in all of them as far as it is read here; from 2.28.9 on there is JSON, too. RAS counts what each rank has
launched, by operation and communicator. It does not know what has completed, nor sizes, types and lines; it
knows no group of gloo's; and a stopped process does not answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lockstep.verdict import Verdict

VERSION = 1
"""Of the JSON that is kept."""

_TOTAL = re.compile(r"\(total\)\s+\(total\)(?:\s+\(total\))?\s*\n\s*\d+\s+(\d+)\s+\d+")
_PER_NODE = re.compile(r"\(total\)   per node[^\n]*\n\s*\d+\s+\d+\s+\d+\s+(\d+)\s+\d+")
_BLOCK = re.compile(r"^#\d+-\d+ \(([0-9a-f]+)\) (MISMATCH|INCOMPLETE|ERROR)$")
_COUNTS = re.compile(r"^  Communicator ranks have different (\w+) operation counts$")
_MANY = re.compile(r"^  \d+ ranks have (?:launched up to operation (\d+)|not launched any operations)$")
_ONE = re.compile(
    r"^  Rank (\d+) has (?:launched up to operation (\d+)|not launched any operations)"
    r" -- (?:GPU .+? managed by process (\d+) on node \S+|\[process information not found\])$"
)
_LISTED = re.compile(
    r"^  Rank (\d+) -- (?:GPU .+? managed by process (\d+) on node \S+|\[process information not found\])$"
)


@dataclass(frozen=True)
class Launched:
    """How many operations of one kind a rank has launched in a communicator."""

    rank: int
    """-1: all ranks of a majority, which NCCL's text does not list."""
    pid: int | None
    count: int


@dataclass(frozen=True)
class Communicator:
    """One of NCCL's, as far as it is told. `counts`: by operation. Of text only operations are told in which
    ranks differ, and of those only ranks that are in no majority."""

    hash: str
    counts: dict[str, tuple[Launched, ...]] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    """Ranks that did not answer."""
    faults: tuple[str, ...] = ()
    """`MISMATCH`, `INCOMPLETE`, `ERROR`, as NCCL has it."""

    @property
    def differing(self) -> dict[str, tuple[Launched, ...]]:
        """The operations in which ranks have launched different numbers."""
        return {
            op: ranks for op, ranks in self.counts.items() if len({launched.count for launched in ranks}) > 1
        }


@dataclass(frozen=True)
class Report:
    text: str
    """As NCCL has sent it."""
    processes: int | None
    """How many NCCL knows of."""
    communicators: tuple[Communicator, ...]
    as_json: bool

    def sentence(self) -> str:
        """In a line."""
        how = "JSON" if self.as_json else "text"
        apart = [c for c in self.communicators if c.differing]
        told = "; ".join(f"communicator {c.hash}: {_differing(c)}" for c in apart)
        return f"NCCL's RAS ({how}), {self.processes} processes: {told or 'no counts that differ'}"

    def to_json(self) -> dict[str, Any]:
        return {"v": VERSION, "format": "json" if self.as_json else "text", "processes": self.processes,
                "communicators": [asdict(each) for each in self.communicators]}  # fmt: skip


def read(text: str) -> Report:
    """A report in either format. What is not understood of it is left out. Raises nothing."""
    found = _from_json(text) if text.lstrip().startswith("{") else None
    return found or _from_text(text)


def witness(report: Report, verdict: Verdict) -> str:
    """What `report` says on the group of a verdict of `stuck`, in a sentence; empty where it says nothing.

    A communicator is the group's if its differing ranks are processes of the group.
    """
    if verdict.group is None or not verdict.waiting or not verdict.absent:
        return ""
    pids = {view.pid: view.rank for view in verdict.ranks if view.pid is not None}
    for communicator in report.communicators:
        for op, ranks in communicator.differing.items():
            listed = [x for x in ranks if x.rank >= 0]
            counts = {pids[x.pid]: x.count for x in listed if x.pid in pids}
            if not counts or len(counts) < len(listed):
                continue
            rest = [x.count for x in ranks if x.rank < 0]
            waiting, absent = (
                [counts[rank] if rank in counts else rest[0] for rank in those if rank in counts or rest]
                for those in (verdict.waiting, verdict.absent)
            )
            if not waiting or not absent:
                continue
            agrees = min(waiting) > max(absent)
            told = f"{_ranks(verdict.waiting)} launched {op} {_numbers(waiting)}"
            behind = f"{_ranks(verdict.absent)} {_numbers(absent)}"
            return f"NCCL's own counts {'agree' if agrees else 'do NOT agree'}: {told}, {behind}"
    stopped = sorted({rank for each in report.communicators for rank in each.missing})
    if stopped:
        return f"NCCL's own counts: {_ranks(stopped)} of a communicator did not answer"
    return ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _numbers(counts: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(counts))))


def _differing(communicator: Communicator) -> str:
    return "; ".join(
        f"{op} " + ", ".join(f"{'most ranks' if x.rank < 0 else f'rank {x.rank}'}: {x.count}" for x in ranks)
        for op, ranks in communicator.differing.items()
    )


def _from_json(text: str) -> Report | None:
    # NCCL 2.28.9 forgets the comma before a missing rank's status; later releases do not.
    text_of_json = re.sub(r'("nvml_dev": -?\d+)\s*\n(\s*"status")', r"\1,\n\2", text)
    try:
        data = json.loads(text_of_json)
        communicators = tuple(map(_communicator, data["communicators"]))
        ranks = [rank for c in data["communicators"] for rank in (*c["ranks"], *c["missing_ranks"])]
        pids = {(rank["host"], rank["pid"]) for rank in ranks}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Report(text, len(pids), communicators, as_json=True)


def _communicator(data: dict[str, Any]) -> Communicator:
    counts: dict[str, list[Launched]] = {}
    for rank in data["ranks"]:
        for op, count in rank["collective_counts"].items():
            counts.setdefault(op, []).append(Launched(int(rank["rank"]), int(rank["pid"]), int(count)))
    missing = tuple(int(rank["rank"]) for rank in data["missing_ranks"])
    used = {op: tuple(ranks) for op, ranks in counts.items() if any(x.count for x in ranks)}
    made = Communicator(str(data["hash"]).removeprefix("0x"), used, missing)
    faults = (["MISMATCH"] if made.differing else []) + (["INCOMPLETE"] if missing else [])
    return Communicator(made.hash, used, missing, tuple(faults))


def _from_text(text: str) -> Report:
    found: dict[str, Communicator] = {}
    current, fault, op = "", "", ""
    many: int | None = None
    for line in text.splitlines():
        if match := _BLOCK.match(line):
            current, fault, op, many = match[1], match[2], "", None
            known = found.get(current, Communicator(current))
            found[current] = Communicator(current, known.counts, known.missing, (*known.faults, fault))
        elif not line.strip() or not current:
            op, many = "", None
        elif match := _COUNTS.match(line):
            op, many = match[1], None
        elif op and (match := _MANY.match(line)):
            many = int(match[1] or 0)
            _add(found, current, op, Launched(-1, None, many))
        elif op and (match := _ONE.match(line)):
            _add(found, current, op, Launched(int(match[1]), _pid(match[3]), int(match[2] or 0)))
        elif match := _LISTED.match(line):
            if op and many is not None:
                _unlist(found, current, op, many)
                _add(found, current, op, Launched(int(match[1]), _pid(match[2]), many))
            elif fault == "INCOMPLETE":
                known = found[current]
                found[current] = Communicator(
                    current, known.counts, (*known.missing, int(match[1])), known.faults
                )
    processes = _PER_NODE.search(text) or _TOTAL.search(text)
    return Report(text, int(processes[1]) if processes else None, tuple(found.values()), as_json=False)


def _pid(text: str | None) -> int | None:
    return int(text) if text else None


def _add(found: dict[str, Communicator], name: str, op: str, launched: Launched) -> None:
    known = found[name]
    counts = {**known.counts, op: (*known.counts.get(op, ()), launched)}
    found[name] = Communicator(name, counts, known.missing, known.faults)


def _unlist(found: dict[str, Communicator], name: str, op: str, count: int) -> None:
    """Take back a majority that is listed rank by rank."""
    known = found[name]
    counts = {**known.counts, op: tuple(x for x in known.counts[op] if (x.rank, x.count) != (-1, count))}
    found[name] = Communicator(name, counts, known.missing, known.faults)
