"""A pickled dump into a Dump: the header by the machine, records by the fast lane where they are like one
before."""

from __future__ import annotations

import re
from typing import Any

from .collect import Collector, Like
from .errors import Malformed
from .fast_path import Integers, compile_lane, reference
from .header import read_header
from .pickle_reader import Machine

_LANES = 4
_KEPT = 1 << 14
_Key = tuple[bytes, ...]
_integers = Integers()


class PickledDump:
    """Reads one file. `fast` is off only to check that it makes no difference."""

    def __init__(self, data: bytes, collector: Collector, *, fast: bool = True) -> None:
        self._data = data
        self._collector = collector
        self._machine = Machine(data)
        self._fast = fast
        self._lanes: dict[tuple[str, ...], re.Pattern[bytes] | None] = {}
        self._lane: re.Pattern[bytes] | None = None
        self._known: dict[_Key, Like | None] = {}

    def read(self) -> None:
        """Raises Malformed, also where the records before the damage have been taken."""
        try:
            self._read()
        finally:
            self._locate()

    def _read(self) -> None:
        machine = self._machine
        header: dict[str, Any] | None = None
        while not machine.ended:
            machine.run(watch=2)
            if machine.ended:
                break
            around = machine.outer[-1]
            if not machine.stack and len(around) >= 2 and around[-2] == "entries" and around[-1] == []:
                if header is None:
                    # Keys that came before: torch writes the groups' ranks first, and records need them.
                    header = {k: v for k, v in zip(around[::2], around[1::2], strict=False) if type(k) is str}
                    read_header(header, self._collector.dump, self._collector.operations.ranks)
                self._records()
        if len(machine.stack) != 1 or machine.outer or type(machine.stack[0]) is not dict:
            raise Malformed(machine.pos, "expected one dict in the pickle")
        top = machine.stack[0]
        left = top.get("entries", [])
        if type(left) is not list:
            raise Malformed(None, "entries: expected a list of records")
        read_header(top, self._collector.dump, self._collector.operations.ranks)
        self._locate()
        for entry in left:
            self._collector.add(entry, None)

    def _records(self) -> None:
        machine, data = self._machine, self._data
        outer = list(machine.outer)
        while True:
            if self._lane is not None and not machine.stack:
                machine.pos = self._matched(self._lane, machine.pos)
            start = machine.pos
            if data[start : start + 1] in (b"e", b""):
                return
            machine.run(watch=2)
            if machine.ended or len(machine.outer) != 2 or machine.outer[1] is not outer[1]:
                raise Malformed(start, "expected a record, or the end of the records")
            entries = machine.stack[:]
            machine.stack.clear()
            for entry in entries:
                self._collector.add(entry, start)
                self._learn(entry)

    def _learn(self, entry: dict[str, Any]) -> None:
        keys = tuple(entry)
        if not self._fast:
            return
        if keys not in self._lanes and len(self._lanes) < _LANES:
            wanted = set(keys)
            # Of several numbers for one string the last: the pickler uses one only.
            written = {
                value: reference(n)
                for n, value in self._machine.memo.items()
                if type(value) is str and value in wanted
            }
            self._lanes[keys] = compile_lane(keys, written)
        self._lane = self._lanes.get(keys)

    def _matched(self, lane: re.Pattern[bytes], pos: int) -> int:
        """Takes records from `pos` on while they match and returns where they end."""
        known = self._known
        seqs: list[bytes] = []
        likes: list[Like | None] = []
        places: list[int] = []
        scanner = lane.scanner(self._data, pos)  # type: ignore[attr-defined]  # each match begins where the last one ended
        for found in iter(scanner.match, None):
            group, seq, op, shapes, state, retired, p2p = found.groups()
            key = group, op, shapes, state, retired, p2p
            if key in known:
                seqs.append(seq)
                likes.append(known[key])
                places.append(found.start())
            else:
                self._taken(seqs, likes, places)
                self._meet(key, found.start())
            pos = found.end()
        self._taken(seqs, likes, places)
        return pos

    def _taken(self, seqs: list[bytes], likes: list[Like | None], places: list[int]) -> None:
        """Adds records like known ones to their traces, and empties the lists."""
        self._collector.dump.records += len(likes)
        last = dict(zip(likes, places, strict=True))
        if len({id(like[0]) for like in last if like}) == 1 and not any(
            like is None or like[2] for like in last
        ):
            trace = next(like[0] for like in last if like)
            trace.seqs.extend(map(_integers.__getitem__, seqs))
            trace.calls.extend([like[1] for like in likes if like])
        else:
            for like, seq in zip(likes, seqs, strict=True):
                if like:
                    trace, operation, totals = like
                    trace.seqs.append(_integers[seq])
                    trace.calls.append(operation)
                    if totals:
                        trace.uneven[trace.seqs[-1]] = totals
        for like, place in last.items():
            if like:
                like[0].last_place = max(place, like[0].last_place or 0)
        for taken in (seqs, likes, places):
            taken.clear()

    def _meet(self, key: _Key, start: int) -> None:
        """Reads a matched record in full and remembers, if it had completed, what the next one like it stands
        for.
        """
        added = self._collector.add(self._again(start), start)
        if added.done and len(self._known) < _KEPT:
            self._known[key] = added.like

    def _locate(self) -> None:
        """Reads the last record of each group for its line and time."""
        for trace in self._collector.dump.traces.values():
            if (place := trace.last_place) is not None:
                trace.last_place = None
                self._collector.locate(trace, self._again(place), place)

    def _again(self, start: int) -> Any:
        machine = self._machine
        stack, outer, pos = machine.stack, machine.outer, machine.pos
        machine.stack, machine.outer, machine.pos = [], [[], []], start
        try:
            machine.run(watch=2)
            return machine.stack[-1]
        finally:
            machine.stack, machine.outer, machine.pos = stack, outer, pos
