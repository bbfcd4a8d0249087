"""Keeps, for every group of one process, what was issued in it and what the ledger has been told of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lockstep.flight_records import together
from lockstep.inside.digest import Stream
from lockstep.inside.flight_recorder import Entry, Pg, Status
from lockstep.inside.group_names import Group, GroupNames
from lockstep.inside.main_thread import calling_line
from lockstep.inside.numbering import Numbers

NAMED_WITHIN_S = 0.5
"""A package may make a group first and note what it is for right after."""

UNRECORDED = "unrecorded"
"""Stands for a collective that has a sequence number and no record: torch keeps none of gloo's monitored
barrier, or it was overwritten.
"""

INIT = "communicator init"
"""Stands for a group's first collective while NCCL makes the group's communicator for it."""


class Call(NamedTuple):
    """One collective: its sequence number and its key (`flight.Status`) in the group, what it is, and when it
    was issued.
    """

    seq: int
    key: int
    op: str
    dtype: str
    n: int | None
    t: float


class Counted:
    """A group that torch's recorder does not see, say a package's own NCCL communicator. Its calls are
    counted as they are made.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.issued = 0
        self.completed = 0
        self.at = ""
        self.fresh: deque[Call] = deque()

    def call(self, op: str, dtype: str, n: int | None, function: Callable[[], Any]) -> Any:
        """Runs `function` as one collective of the group, issued by the code that called the probe's."""
        self.at = calling_line()
        self.issued += 1
        self.fresh.append(Call(self.issued, self.issued, op, dtype, n, time.time()))
        result = function()
        self.completed += 1
        return result


@dataclass(frozen=True)
class Counts:
    """How far the groups were at one moment: by the recorder's keys, and in order of making for counted
    groups.
    """

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
        self.numbers = Numbers()
        self.over = 0
        """Key of a collective up to which all are known to have completed."""
        self.told = 0
        """Issued, as of the last boundary written."""
        self.pending: deque[Call] = deque()
        """Calls that no boundary has told yet."""
        self.shown = 0
        """The last of them that a pulse has told."""
        self.open: deque[Call] = deque()
        """Calls that had not completed when the last pulse was written."""
        self.stream = Stream()
        self.starting = False
        """Whether its first collective is being made ready and has no record yet."""

    def keys(self, counts: Counts) -> tuple[int, int]:
        """Keys of the last collective issued and completed."""
        if self.counted is not None:
            return counts.counted[self.counted] if self.counted < len(counts.counted) else (0, 0)
        if self.pg is None:
            return 0, 0
        completed = counts.recorded.completed.get(self.pg, 0)
        return counts.recorded.enqueued.get(self.pg, 0), max(completed, self.over)

    def of(self, counts: Counts) -> tuple[int, int]:
        """Issued and completed."""
        if self.starting and self.pg is None:
            return 1, 0
        issued, completed = self.keys(counts)
        return self.numbers.seq(issued), self.numbers.seq(completed)

    def add(self, call: Call) -> None:
        self.numbers.add(call.key, call.seq)
        for calls in (self.pending, self.open):
            if calls and calls[-1].seq == call.seq:
                last = calls.pop()
                made = together((last.op, last.dtype, last.n), (call.op, call.dtype, call.n))
                calls.append(last._replace(op=made.op, dtype=made.dtype, n=made.n))
            else:
                calls.append(call)

    def settle(self, counts: Counts) -> None:
        """Forgets the calls that have completed."""
        key = self.keys(counts)[1]
        while self.open and self.open[0].key <= key:
            self.open.popleft()
        self.numbers.forget(key)


class GroupTable:
    """All groups of one process that have peers. Used by the probe's thread alone; lines go out through
    `write`.
    """

    def __init__(self, names: GroupNames, write: Callable[[dict[str, Any]], None]) -> None:
        self._names = names
        self._write = write
        self._tracked: list[_Tracked] = []
        self._named: dict[str, _Tracked | None] = {}
        """torch's name -> the group; None for a group of one rank."""
        self._seen: dict[str, float] = {}
        self._recorded: dict[Pg, _Tracked | None] = {}
        self._drained: dict[Pg, int] = {}
        """What the recorder's status said of each group before the last drain."""
        self._counters: dict[int, _Tracked | None] = {}
        self._ops: dict[tuple[str, str, int | None], int] = {}

    def unread(self, counts: Counts) -> int:
        """How many records have not been read, at most."""
        return sum(max(0, key - self._drained.get(pg, 0)) for pg, key in counts.recorded.enqueued.items())

    def covers(self, counts: Counts) -> bool:
        """Whether every record up to `counts` has been read. One may come a moment after its number."""
        return all(tracked.keys(counts)[0] <= tracked.numbers.read for tracked in self._tracked)

    def find(self, used: str = "") -> None:
        """Declares torch's groups that are old enough for their makers to have said what they are for, and
        `used` at once.
        """
        now = time.monotonic()
        for name, group in self._names.registered(self._named).items():
            if name == used or now - self._seen.setdefault(name, now) >= NAMED_WITHIN_S:
                self._named[name] = self._declare(group)

    def absorb(self, entries: list[Entry], counts: Counts) -> None:
        """Takes what a drain has read that came after `counts`."""
        self._drained = counts.recorded.enqueued
        for e in entries:
            if e.pg not in self._recorded:
                self._recorded[e.pg] = self._bind(e)
            tracked = self._recorded[e.pg]
            if tracked is not None:
                tracked.add(Call(e.seq, e.key, e.op, e.dtype, e.n, e.t))

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
                    tracked.add(call)

    def since_last(self, counts: Counts) -> tuple[dict[str, Any], dict[str, Any]]:
        """The `c` and `s` of a boundary that was passed at `counts`."""
        c: dict[str, Any] = {}
        s: dict[str, Any] = {}
        for tracked in self._tracked:
            issued, _ = tracked.of(counts)
            while tracked.pending and tracked.pending[0].seq <= issued:
                call = tracked.pending.popleft()
                self._fill(tracked.stream, call.seq - 1)
                tracked.stream.add(self._op(call.op, call.dtype, call.n), call.op, call.dtype, call.n)
            self._fill(tracked.stream, issued)
            if issued > tracked.told:
                c[str(tracked.g)] = [issued, tracked.stream.digest, dict(tracked.stream.tally)]
                if (runs := tracked.stream.take_runs()) is not None:
                    s[str(tracked.g)] = runs
                tracked.told, tracked.shown = issued, 0
        return c, s

    def untold(self, counts: Counts) -> dict[str, Any]:
        """The `s` of a pulse: what was issued up to `counts` and no boundary has told, where a pulse has not
        told it yet either.
        """
        s: dict[str, Any] = {}
        for tracked in self._tracked:
            issued, _ = tracked.of(counts)
            calls = [call for call in tracked.pending if call.seq <= issued]
            if not calls or calls[-1].seq == tracked.shown:
                continue
            tracked.shown = calls[-1].seq
            stream = Stream(issued=tracked.told)
            for call in calls:
                self._fill(stream, call.seq - 1)
                stream.add(self._op(call.op, call.dtype, call.n), call.op, call.dtype, call.n)
            if (runs := stream.take_runs()) is not None:
                s[str(tracked.g)] = [stream.issued, runs]
        return s

    def note_starting(self, begun: Callable[[str], int]) -> None:
        """Marks groups whose first collective has been called and has no record, by torch's name -> `begun`,
        the number of its collectives that were called. NCCL makes a group's communicator then, for which it
        waits for all ranks.
        """
        for name, tracked in self._named.items():
            if tracked is not None:
                tracked.starting = tracked.pg is None and begun(name) == 1

    def pairs(self, counts: Counts) -> dict[str, list[int]]:
        """The `c` of a pulse."""
        for tracked in self._tracked:
            tracked.settle(counts)
        return {str(tracked.g): list(tracked.of(counts)) for tracked in self._tracked}

    def outstanding(self, counts: Counts) -> bool:
        """Whether a collective was issued and has not completed, by the groups' numbers alone."""
        return any(
            issued > completed for issued, completed in (tracked.of(counts) for tracked in self._tracked)
        )

    def asynchronous(self, waiting: dict[str, Any]) -> bool:
        """Whether the group that waits is one whose calls return before they are done, as NCCL's do."""
        return "nccl" in self._tracked[waiting["g"]].group.backend.lower()

    def waiting(
        self, counts: Counts, retired: frozenset[tuple[Pg, int]]
    ) -> tuple[dict[str, Any] | None, bool]:
        """The collective that was issued first of those not completed, with what is known of it; and whether
        it is the only one.

        Two threads of gloo may complete collectives out of order, and then the number of the last one falls
        back: what the recorder has `retired` is over, and counts as completed from here on.
        """
        found: list[tuple[float, dict[str, Any]]] = []
        for tracked in self._tracked:
            if tracked.starting and tracked.pg is None:
                found.append((time.time(), {"g": tracked.g, "seq": 1, "op": INIT, "dtype": "", "n": None}))
                continue
            issued, completed = tracked.keys(counts)
            calls = [call for call in tracked.open if completed < call.key <= issued]
            over = [tracked.pg is not None and (tracked.pg, call.key) in retired for call in calls]
            for call, done in zip(calls, over, strict=True):
                if not done:
                    break
                tracked.over = call.key
            for call in (call for call, done in zip(calls, over, strict=True) if not done):
                known = {"g": tracked.g, "seq": call.seq, "op": call.op, "dtype": call.dtype, "n": call.n}
                if tracked.counter is not None:
                    known["at"] = tracked.counter.at
                found.append((call.t, known))
            if not calls and issued > completed:  # its record was lost
                found.append((time.time(), {"g": tracked.g, "seq": tracked.numbers.seq(completed) + 1}))
        first = min(found, key=lambda item: item[0], default=(0.0, None))[1]
        return first, len(found) == 1

    def _bind(self, entry: Entry) -> _Tracked | None:
        name = entry.names[0]
        if name:
            known = self._named.get(name)
            if known is not None and known.pg is not None:  # destroyed, and another one made in its place
                del self._named[name]
            self.find(used=name)
            tracked = self._named.get(name)
        else:
            outside = self._names.outside(entry.pg)
            tracked = self._declare(outside) if outside else None
        if tracked is not None:
            tracked.pg = entry.pg
        return tracked

    def _declare(self, group: Group) -> _Tracked | None:
        if len(group.ranks) < 2:
            return None
        alike = [
            t.group
            for t in self._tracked
            if t.group.ranks == group.ranks and t.group.name.partition("#")[0] == group.name
        ]
        # A group that was destroyed and made anew has the same id: its turn tells it apart.
        turn = 1 + sum(1 for other in alike if group.id and other.id.partition("/")[0] == group.id)
        if turn > 1:
            group = replace(group, id=f"{group.id}/{turn}")
        if alike:
            group = replace(group, name=f"{group.name}#{len(alike) + 1}")
        tracked = _Tracked(len(self._tracked), group)
        self._tracked.append(tracked)
        told = {"id": group.id} if group.id else {}
        self._write({"k": "group", "g": tracked.g, "name": group.name, **told, "lib": group.lib,
                     "backend": group.backend, "ranks": list(group.ranks), "rank": group.rank})  # fmt: skip
        return tracked

    def _fill(self, stream: Stream, upto: int) -> None:
        while stream.issued < upto:
            stream.add(self._op(UNRECORDED, "", None), UNRECORDED, "", None)

    def _op(self, op: str, dtype: str, n: int | None) -> int:
        known = self._ops.get((op, dtype, n))
        if known is None:
            known = self._ops[op, dtype, n] = len(self._ops)
            self._write({"k": "op", "id": known, "op": op, "dtype": dtype, "n": n})
        return known
