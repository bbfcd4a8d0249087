"""Keeps, for every group of one process, what was issued in it and what the ledger has been told of it."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lockstep.probe.digest import Stream
from lockstep.probe.flight import Entry, Pg, Status
from lockstep.probe.groups import Group, GroupNames
from lockstep.probe.where import short_path

NAMED_WITHIN_S = 0.5
"""vLLM makes a group first and notes what it is for right after."""

Call = tuple[int, str, str, "int | None"]
"""Sequence number in its group, operation, element type, element count."""


class Counted:
    """A group that torch's recorder does not see (vLLM's own NCCL communicator): its calls are counted as they are made."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.issued = 0
        self.completed = 0
        self.at = ""
        self.fresh: deque[Call] = deque()

    def call(self, op: str, dtype: str, n: int | None, function: Callable[[], Any]) -> Any:
        """Runs `function` as one collective of the group, issued by the caller of the function that called this."""
        frame = sys._getframe(2)
        self.at = f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        self.issued += 1
        self.fresh.append((self.issued, op, dtype, n))
        result = function()
        self.completed += 1
        return result


@dataclass(frozen=True)
class Counts:
    """How far the groups were at one moment: by the recorder's number, and in order of making for counted groups."""

    recorded: Status
    counted: tuple[tuple[int, int], ...]
    """Issued and completed of each counted group, in order of making."""


class _Tracked:
    def __init__(self, g: int, group: Group) -> None:
        self.g = g
        self.group = group
        self.pg: Pg | None = None
        """The recorder's number of the group, known from its first record on."""
        self.counted: int | None = None
        """Its place among the counted groups, if it is one."""
        self.counter: Counted | None = None
        self.read = 0
        """Sequence number of the last record read."""
        self.told = 0
        """Issued, as of the last boundary written."""
        self.pending: deque[Call] = deque()
        self.stream = Stream()

    def of(self, counts: Counts) -> tuple[int, int]:
        """Issued and completed."""
        if self.counted is not None:
            return counts.counted[self.counted] if self.counted < len(counts.counted) else (0, 0)
        if self.pg is None:
            return 0, 0
        return counts.recorded.enqueued.get(self.pg, 0), counts.recorded.completed.get(self.pg, 0)


class GroupTable:
    """All groups of one process that have peers. Used by the probe's thread alone; lines go out through `write`."""

    def __init__(self, names: GroupNames, write: Callable[[dict[str, Any]], None]) -> None:
        self._names = names
        self._write = write
        self._tracked: list[_Tracked] = []
        self._named: dict[str, _Tracked | None] = {}
        """torch's name -> the group; None for a group of one rank."""
        self._seen: dict[str, float] = {}
        self._recorded: dict[Pg, _Tracked | None] = {}
        self._counters: dict[int, _Tracked | None] = {}
        self._ops: dict[tuple[str, str, int | None], int] = {}

    def unread(self, counts: Counts) -> float:
        """How many records have not been read; infinite when there are some of a group not seen before."""
        total = 0.0
        for pg, enqueued in counts.recorded.enqueued.items():
            if enqueued and pg not in self._recorded:
                return math.inf
            tracked = self._recorded.get(pg)
            total += enqueued - tracked.read if tracked else 0
        return total

    def find(self, used: str = "") -> None:
        """Declares torch's groups that are old enough for their makers to have said what they are for, and `used` at once."""
        now = time.monotonic()
        for name, group in self._names.registered().items():
            if name not in self._named and (name == used or now - self._seen.setdefault(name, now) >= NAMED_WITHIN_S):
                self._named[name] = self._declare(group)

    def absorb(self, entries: list[Entry]) -> None:
        for e in entries:
            if e.pg not in self._recorded:
                self._recorded[e.pg] = self._bind(e)
            tracked = self._recorded[e.pg]
            if tracked is not None:
                call: Call = (e.key, e.op, e.dtype, e.n)
                if e.key == tracked.read and tracked.pending:
                    call = _coalesced(tracked.pending.pop(), call)
                tracked.read = e.key
                tracked.pending.append(call)

    def absorb_counted(self, counters: list[Counted]) -> None:
        for i, counter in enumerate(counters):
            if i not in self._counters:
                self._counters[i] = tracked = self._declare(counter.group)
                if tracked is not None:
                    tracked.counted, tracked.counter = i, counter
            tracked = self._counters[i]
            while counter.fresh:
                call = counter.fresh.popleft()
                if tracked is not None:
                    tracked.pending.append(call)

    def since_last(self, counts: Counts) -> tuple[dict[str, Any], dict[str, Any]]:
        """The `c` and `s` of a boundary that was passed at `counts`."""
        c: dict[str, Any] = {}
        s: dict[str, Any] = {}
        for tracked in self._tracked:
            issued, _ = tracked.of(counts)
            while tracked.pending and tracked.pending[0][0] <= issued:
                _, op, dtype, n = tracked.pending.popleft()
                tracked.stream.add(self._op(op, dtype, n), op, dtype, n)
            if issued > tracked.told:
                c[str(tracked.g)] = [issued, tracked.stream.digest, dict(tracked.stream.tally)]
                if (runs := tracked.stream.take_runs()) is not None:
                    s[str(tracked.g)] = runs
                tracked.told = issued
        return c, s

    def pairs(self, counts: Counts) -> dict[str, list[int]]:
        """The `c` of a pulse."""
        return {str(tracked.g): list(tracked.of(counts)) for tracked in self._tracked}

    def waiting(self, counts: Counts) -> dict[str, Any] | None:
        """The first collective that was issued and has not completed, with what is known of it."""
        for tracked in self._tracked:
            issued, completed = tracked.of(counts)
            if issued > completed:
                known: dict[str, Any] = {"g": tracked.g, "seq": completed + 1}
                if tracked.counter is not None:
                    known["at"] = tracked.counter.at
                for call in tracked.pending:
                    if call[0] == completed + 1:
                        known |= {"op": call[1], "dtype": call[2], "n": call[3]}
                return known
        return None

    def _bind(self, entry: Entry) -> _Tracked | None:
        if entry.names[0]:
            self.find(used=entry.names[0])
            tracked = self._named.get(entry.names[0])
        else:
            outside = self._names.outside(entry.pg)
            tracked = self._declare(outside) if outside else None
        if tracked is not None:
            tracked.pg = entry.pg
        return tracked

    def _declare(self, group: Group) -> _Tracked | None:
        if len(group.ranks) < 2:
            return None
        same = sum(1 for t in self._tracked if t.group.ranks == group.ranks and t.group.name.partition("#")[0] == group.name)
        if same:
            group = replace(group, name=f"{group.name}#{same + 1}")
        tracked = _Tracked(len(self._tracked), group)
        self._tracked.append(tracked)
        self._write({"k": "group", "g": tracked.g, "name": group.name, "lib": group.lib, "backend": group.backend,
                     "ranks": list(group.ranks), "rank": group.rank})  # fmt: skip
        return tracked

    def _op(self, op: str, dtype: str, n: int | None) -> int:
        known = self._ops.get((op, dtype, n))
        if known is None:
            known = self._ops[op, dtype, n] = len(self._ops)
            self._write({"k": "op", "id": known, "op": op, "dtype": dtype, "n": n})
        return known


def _coalesced(first: Call, then: Call) -> Call:
    """Two records of one number as one call: NCCL counts all that is issued between two `ncclGroup` calls as one collective.

    It is not counted as issued before its last record is written, so all of them are still pending here.
    """
    n = None if first[3] is None or then[3] is None else first[3] + then[3]
    return then[0], "coalesced", first[2], n
