"""The probe of one process: boundaries come in from the job's threads, lines go out to the ledger."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.clock import clock_id, stamp
from lockstep.flight_records import RULES
from lockstep.inside.capture import RelaxedThread
from lockstep.inside.counters import Counted, Counts, GroupTable
from lockstep.inside.flight_recorder import NCCL, FlightRecorder, Status
from lockstep.inside.group_names import Group, GroupNames, Purpose, no_purpose
from lockstep.inside.main_thread import MainThread, issuing_line
from lockstep.inside.writer import LedgerWriter, complain

VERSION = 1
POLL_S = 0.1
"""How often the counts are looked at; four times as often while collectives come so fast that the ring could
fill meanwhile.
"""
PULSE_S = 0.9
KEEPALIVE_S = 2.0
SHARE = 0.005
"""Of a core, for reading records while there is no hurry: a full ring takes milliseconds to read, however
little is new in it.
"""
LATE_S = 0.2
"""A record that is not there this long after its number was counted does not come."""
HELD_S = 10.0
"""A process that has waited this long in one collective captures no graph meanwhile."""


@dataclass(frozen=True)
class _Mark:
    t: float
    m: float
    name: str
    step: int | None
    counts: Counts


class Probe:
    """Watches one process. What the job calls never raises and never waits for a disk, a device or another
    rank.
    """

    def __init__(
        self,
        directory: Path,
        side: str,
        role: str,
        rank: int,
        versions: dict[str, str],
        *,
        stack: str = "",
        purpose: Purpose = no_purpose,
    ) -> None:
        self.beats = 0
        self.pid = os.getpid()
        self._stem = f"{side}-{role.replace(' ', '_')}-{rank}-{self.pid}"
        self._directory = directory
        self._writer = LedgerWriter(directory / "ledgers", self._stem)
        self._write({"k": "process", "v": VERSION, "side": side, "role": role, "rank": rank, "pid": self.pid,
                     "host": socket.gethostname(), "clock": clock_id(), "stack": stack, "rules": RULES,
                     "versions": versions,
                     "argv": sys.argv[:64]})  # fmt: skip
        self._recorder = FlightRecorder()
        self._names = GroupNames(side, purpose)
        self._table = GroupTable(self._names, self._write)
        self._counters: list[Counted] = []
        self._marks: deque[_Mark] = deque()
        self._passed: dict[str, int] = {}
        self._main = MainThread()
        self._pulse: dict[str, Any] = {}
        self._pulse_t = self._look_t = 0.0
        self._ring = int(
            os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or 2000
        )
        self._next_read = 0.0
        self._unread = 0
        self._burst = self._ring // 4
        self._by = ""
        self._relaxed = RelaxedThread()
        self._held = False
        self._held_at, self._held_since = Status(), 0.0
        self._wake = threading.Event()
        self._stop = self._failed = self._dumped = False
        self._thread = threading.Thread(target=self._run, name="lockstep-probe", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    # Called by the job

    def boundary(self, name: str, step: int | None = None) -> None:
        """Notes that this process passes a boundary now, with its counts (about 0.1 ms)."""
        if self._failed:
            return
        try:
            self._marks.append(_Mark(*stamp(), name, step, self._counts()))
            self._relaxed.note_device()
            self._wake.set()  # whoever watches the ledger for a boundary is told of it at once
        except Exception as error:  # whatever is wrong with the probe, the job comes first
            self._fail(error)

    def hold_records(self) -> None:
        """Has no records read until `release_records`, since this process captures CUDA graphs until then
        (see `lockstep.inside.capture`). Counts are read all the same.
        """
        self._held = True

    def release_records(self) -> None:
        """Has records read from now on. Call it from a thread that uses the process's device."""
        self._relaxed.note_device()
        self._held = False

    def announce(self, unnamed: int, group: Group) -> None:
        """Says what the process's `unnamed`-th group outside torch's registry is (0 for the first)."""
        self._names.announce(unnamed, group)

    def count(self, group: Group) -> Counted:
        """A new counter for a group that the recorder does not see."""
        self._counters.append(Counted(group))
        return self._counters[-1]

    def close(self, by: str = "") -> None:
        """Writes what is left and ends the ledger; `by` is the name of the signal that ends the process, if
        one does.
        """
        if not self._stop:
            self._by = by
            self._stop = True
            self._wake.set()
        self._thread.join(timeout=5)

    # The probe's own thread

    def _run(self) -> None:
        try:
            while not self._stop:
                self._wake.wait(POLL_S if self._burst <= self._ring // 4 else POLL_S / 4)
                self._wake.clear()
                self._turn()
            c, s = self._table.since_last(self._turn(last=True))
            self._write({"k": "end", **({"by": self._by} if self._by else {}), "c": c, "s": s})
        except Exception as error:
            self._fail(error)

    def _turn(self, last: bool = False) -> Counts:
        """Writes what is due; returns the counts as they were at its begin."""
        t, now = stamp()  # waits by the second: pulses go on whatever becomes of the wall clock
        counts = self._counts()
        unread = self._table.unread(counts) or int(not self._table.covers(counts))
        look = last or now - self._look_t >= PULSE_S
        must = last or self._fills(unread) or now - self._pulse_t >= KEEPALIVE_S - 2 * POLL_S
        if unread and not must and (not (self._marks or look) or time.monotonic() < self._next_read):
            return counts
        if last or (unread and self._may_read(counts)):
            self._read(counts)
        self._tell(last)
        if look:
            self._look_t = now
            self._beat(counts, t, now, last)
            self._dump_if_wanted()
        return counts

    def _may_read(self, counts: Counts) -> bool:
        """Whether records may be read now. While they are held only a process may be looked at that waits in
        one of NCCL's collectives: it captures nothing before that is over.
        """
        if not self._held:
            return True
        now, status = time.monotonic(), counts.recorded
        if status != self._held_at:
            self._held_at, self._held_since = status, now
        waits = any(pg[0] == NCCL and key > status.completed[pg] for pg, key in status.enqueued.items())
        return waits and now - self._held_since >= HELD_S

    def _fills(self, unread: int) -> bool:
        """Whether the ring could fill with records not read before they are looked at again, twice."""
        self._burst = max(unread - self._unread, self._burst * 9 // 10, self._ring // 8)
        self._unread = unread
        return unread + 2 * self._burst > self._ring

    def _read(self, counts: Counts) -> None:
        self._relaxed.enter()
        begun = time.thread_time()
        entries, lost = self._recorder.drain()
        if lost:
            self._write({"k": "lost", "g": None, "records": lost})
        self._table.absorb(entries, counts)
        self._unread = 0
        self._next_read = time.monotonic() + (time.thread_time() - begun) / SHARE

    def _tell(self, last: bool) -> None:
        """Writes the boundaries whose records have been read."""
        self._table.absorb_counted(list(self._counters))
        while self._marks:
            mark = self._marks[0]
            if self._table.unread(mark.counts):
                return
            if not (self._table.covers(mark.counts) or last or time.monotonic() - mark.m >= LATE_S):
                if self._may_read(mark.counts):
                    self._read(mark.counts)
                return
            self._marks.popleft()
            n = self._passed[mark.name] = self._passed.get(mark.name, 0) + 1
            c, s = self._table.since_last(mark.counts)
            step = {} if mark.step is None else {"step": mark.step}
            told = {"k": "boundary", "t": mark.t, "m": mark.m, "b": mark.name, "n": n}
            self._write({**told, **step, "c": c, "s": s})

    def _beat(self, counts: Counts, t: float, now: float, last: bool) -> None:
        self._table.find()
        pulse: dict[str, Any] = {"c": self._table.pairs(counts), "beat": self.beats, "at": self._main.stack()}
        still = pulse == {k: self._pulse.get(k) for k in pulse}
        if still and not self._held:
            self._table.note_starting(self._names.begun)
        if still and now - self._pulse_t < KEEPALIVE_S - PULSE_S and not last:
            return
        if (still or last) and self._table.outstanding(counts) and (last or self._may_read(counts)):
            self._relaxed.enter()
            waiting, only = self._table.waiting(counts, self._recorder.retired())
            if waiting is not None and (still or self._by):
                line = issuing_line()
                if not line and self._table.asynchronous(waiting):
                    # The call has returned, and its thread waits for the device in the code that made it.
                    line = self._main.line()
                if only and "at" not in waiting and line:
                    waiting["at"] = line
                pulse["w"] = waiting
            pulse["c"] = self._table.pairs(counts)
        if still and not last and (untold := self._table.untold(counts)):
            pulse["s"] = untold
        self._pulse, self._pulse_t = pulse, now
        spent = {"cpu": round(self._main.cpu_s(), 3), "queued": self._main.queued_s()}
        if "w" not in pulse and (blocked := self._main.blocked()):
            pulse["blocked"] = blocked
        self._write({"k": "pulse", "t": t, "m": now, **spent, "park": self._main.park(), **pulse})

    def _counts(self) -> Counts:
        return Counts(self._recorder.status(), tuple((c.issued, c.completed) for c in list(self._counters)))

    def _dump_if_wanted(self) -> None:
        """Saves the recorder's entries with their stacks, for a person to read, when somebody has found this
        job stuck.
        """
        evidence = self._directory / "evidence"
        if not self._dumped and (evidence / "wanted").exists():
            self._dumped = True
            self._relaxed.enter()
            # Of a full ring the stacks take longer than the job may have left: what waits comes first.
            for kind, look in (
                ("waiting", self._recorder.outstanding),
                ("flight", self._recorder.last_with_stacks),
            ):
                text = json.dumps(look(), indent=1, default=str)
                (evidence / f"{self._stem}.{kind}.json").write_text(text)

    def _write(self, record: dict[str, Any]) -> None:
        kind = record.pop("k")
        t, m = stamp()
        times = {"t": record.pop("t", t), "m": round(record.pop("m", m), 6)}
        self._writer.write({"k": kind, **times, **record})

    def _fail(self, error: Exception) -> None:
        if self._failed:
            return
        self._failed = True
        try:
            self._write({"k": "error", "what": f"{type(error).__name__}: {error}"})
        except OSError as disk:
            complain(f"the probe failed ({error}) and cannot say so in its ledger: {disk}")

    def _forget(self) -> None:
        # A forked child (a data loader's worker) shares the file but not the thread: it must stay silent.
        self._stop = self._failed = True
