"""Records of one file, one after another, into a Dump."""

from __future__ import annotations

from array import array
from itertools import count
from operator import eq
from typing import Any, NamedTuple

from lockstep.record import Operation

from .errors import Malformed
from .model import Dump, GroupKey, Open, Operations, Trace
from .records import STATES, Work, call, issued_at, names, number, text

Like = tuple[Trace, int, "tuple[int, int] | None"]
"""What a record that is like another one says again: its group, its operation's number, and elements in and
out if they may differ."""


class Added(NamedTuple):
    """What came of a record: whether it had completed, and for a collective what one like it would say."""

    done: bool
    like: Like | None


class Collector:
    """`add` takes a record with all its checks. A reader that knows a record to be like an earlier one may
    append to the trace.
    """

    def __init__(self, dump: Dump, operations: Operations) -> None:
        self.dump = dump
        self.operations = operations
        self._work = Work()

    def add(self, entry: Any, place: int | None) -> Added:
        """Raises Malformed. `place` is the byte where the record begins."""
        if type(entry) is not dict:
            raise Malformed(place, "expected a record, a dict")
        if not self.dump.records and entry.get("record_id", 0) != 0:
            self.dump.whole = False
        trace = self.trace(entry, place)
        size = len(self.dump.ranks.get(trace.key.name, ())) or None
        made, totals = call(entry, size, self._work, place)
        trace.backend = trace.backend or made.backend
        state = text(entry, "state", place)
        if state not in STATES:
            raise Malformed(place, f"a record's state: expected one of {', '.join(STATES)}")
        created = self.locate(trace, entry, place)
        # gloo has no event to ask: its records stay `scheduled` and are retired when the work is done.
        done = state == "completed" or (made.backend == "gloo" and entry.get("retired") is True)
        operation = self.operations.number(Operation(made.op, made.dtype, made.n))
        seq = number(entry, "collective_seq_id", place)
        p2p = number(entry, "p2p_seq_id", place) if "p2p_seq_id" in entry else seq
        self.dump.records += 1
        if made.peer is not None or entry.get("is_p2p") is True:
            if not done:
                trace.transfers.append(
                    Open(
                        p2p,
                        operation,
                        state == "started",
                        created,
                        trace.last_at,
                        self.dump.records,
                        made.peer,
                    )
                )
            return Added(done, None)
        trace.seqs.append(seq)
        trace.calls.append(operation)
        uneven = totals if made.uneven else None
        if uneven:
            trace.uneven[seq] = uneven
        if not done:
            trace.open.append(
                Open(seq, operation, state == "started", created, trace.last_at, self.dump.records)
            )
        return Added(done, (trace, operation, uneven))

    def locate(self, trace: Trace, entry: dict[str, Any], place: int | None) -> int:
        """Notes where and when a group's last record was made, and returns the time in nanoseconds, 0 if it
        is not there.
        """
        created = number(entry, "time_created_ns", place) if "time_created_ns" in entry else 0
        self.dump.last_ns = max(self.dump.last_ns, created)
        trace.last_at, trace.last_place = issued_at(entry, self._work, place), None
        return created

    def trace(self, entry: dict[str, Any], place: int | None) -> Trace:
        name, desc = names(entry, place)
        desc = "" if desc == "undefined" else desc
        key = GroupKey(name, desc, None if name else number(entry, "pg_id", place))
        found = self.dump.traces.get(key)
        if found is None:
            found = self.dump.traces[key] = Trace(key, "")
        return found

    def finish(self) -> None:
        for trace in self.dump.traces.values():
            trace.cut = not self.dump.whole
            _contiguous(trace, self.operations)


def _contiguous(trace: Trace, operations: Operations) -> None:
    """Makes one call of the records that share a number, and drops what lies before a gap."""
    seqs, calls = trace.seqs, trace.calls
    trace.first = seqs[0] if seqs else 1
    trace.seqs = array("q")
    if all(map(eq, seqs, count(trace.first))):
        return
    trace.calls = kept = array("I")
    for seq, operation in zip(seqs, calls, strict=True):
        if kept and seq == trace.last:
            kept[-1] = operations.together(kept[-1], operation)
        else:
            if seq != trace.first + len(kept):
                # Only calls in progress were dumped, or a group of this name was made anew.
                del kept[:]
                trace.first, trace.cut = seq, True
            kept.append(operation)
    for waiting in trace.open:
        if trace.first <= waiting.seq <= trace.last:
            waiting.call = kept[waiting.seq - trace.first]
