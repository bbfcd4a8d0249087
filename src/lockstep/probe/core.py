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

from lockstep.probe.flight import FlightRecorder
from lockstep.probe.groups import Group, GroupNames
from lockstep.probe.tally import Counted, Counts, GroupTable
from lockstep.probe.where import MainThread, issuing_line
from lockstep.probe.writer import LedgerWriter

VERSION = 1
POLL_S = 0.25
PULSE_S = 1.0
KEEPALIVE_S = 2.0


@dataclass(frozen=True)
class _Mark:
    t: float
    name: str
    step: int | None
    counts: Counts


class Probe:
    """Watches one process. What the job calls never raises and never waits for a disk, a device or another rank."""

    def __init__(self, directory: Path, side: str, role: str, rank: int, versions: dict[str, str]) -> None:
        self.beats = 0
        self._pid = os.getpid()
        self._stem = f"{side}-{role.replace(' ', '_')}-{rank}-{self._pid}"
        self._directory = directory
        self._writer = LedgerWriter(directory / "ledgers", self._stem)
        self._write({"k": "process", "v": VERSION, "side": side, "role": role, "rank": rank, "pid": self._pid,
                     "host": socket.gethostname(), "versions": versions, "argv": sys.argv[:64]})  # fmt: skip
        self._recorder = FlightRecorder()
        self._names = GroupNames(side)
        self._table = GroupTable(self._names, self._write)
        self._counters: list[Counted] = []
        self._marks: deque[_Mark] = deque()
        self._passed: dict[str, int] = {}
        self._main = MainThread()
        self._pulse: dict[str, Any] = {}
        self._pulse_t = self._change_t = 0.0
        self._ring = int(os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or 2000)
        self._by = ""
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
            self._marks.append(_Mark(time.time(), name, step, self._counts()))
            self._wake.set()
        except Exception as error:  # whatever is wrong with the probe, the job comes first
            self._fail(error)

    def announce(self, unnamed: int, group: Group) -> None:
        """Says what the process's `unnamed`-th group outside torch's registry is (0 for the first)."""
        self._names.announce(unnamed, group)

    def count(self, group: Group) -> Counted:
        """A new counter for a group that the recorder does not see."""
        self._counters.append(Counted(group))
        return self._counters[-1]

    def close(self, by: str = "") -> None:
        """Writes what is left and ends the ledger; `by` is the name of the signal that ends the process, if one does."""
        if not self._stop:
            self._by = by
            self._stop = True
            self._wake.set()
        self._thread.join(timeout=5)

    # The probe's own thread

    def _run(self) -> None:
        try:
            while not self._stop:
                self._wake.wait(POLL_S)
                self._wake.clear()
                self._turn()
            c, s = self._table.since_last(self._turn(last=True))
            self._write({"k": "end", **({"by": self._by} if self._by else {}), "c": c, "s": s})
        except Exception as error:
            self._fail(error)

    def _turn(self, last: bool = False) -> Counts:
        """Writes what is due; returns the counts as they were at its begin."""
        counts = self._counts()
        if self._marks or last or self._table.unread(counts) > self._ring // 3:
            marks = [self._marks.popleft() for _ in range(len(self._marks))]
            self._read()
            for mark in marks:
                n = self._passed[mark.name] = self._passed.get(mark.name, 0) + 1
                c, s = self._table.since_last(mark.counts)
                step = {} if mark.step is None else {"step": mark.step}
                self._write({"k": "boundary", "t": mark.t, "b": mark.name, "n": n, **step, "c": c, "s": s})
        if last or time.time() - self._pulse_t >= PULSE_S:
            self._beat(counts, last)
        if not self._dumped and (self._directory / "evidence" / "wanted").exists():
            self._dumped = True
            self._dump()
        return counts

    def _read(self) -> None:
        entries, lost = self._recorder.drain()
        self._table.absorb(entries)
        if lost:
            self._write({"k": "lost", "g": None, "records": lost})
        self._table.absorb_counted(list(self._counters))

    def _beat(self, counts: Counts, last: bool) -> None:
        now = time.time()
        self._table.find()
        self._table.absorb_counted(list(self._counters))
        pulse: dict[str, Any] = {"c": self._table.pairs(counts), "beat": self.beats, "at": self._main.stack()}
        still = pulse == {k: self._pulse.get(k) for k in pulse}
        if not still:
            self._change_t = now
        elif now - self._pulse_t < KEEPALIVE_S and not last:
            return
        if (still or self._by) and self._table.waiting(counts) is not None:
            self._read()
            waiting = self._table.waiting(counts) or {}
            if "at" not in waiting and (line := issuing_line()):
                waiting["at"] = line
            pulse["w"] = waiting
        self._pulse, self._pulse_t = pulse, now
        self._write({"k": "pulse", "cpu": round(self._main.cpu_s(), 3), "park": self._main.park(), **pulse})

    def _counts(self) -> Counts:
        return Counts(self._recorder.status(), tuple((c.issued, c.completed) for c in list(self._counters)))

    def _dump(self) -> None:
        """Saves the recorder's entries with their stacks, for a person to read: somebody found this job stuck."""
        path = self._directory / "evidence" / f"{self._stem}.flight.json"
        path.write_text(json.dumps(self._recorder.last_with_stacks(), indent=1, default=str))

    def _write(self, record: dict[str, Any]) -> None:
        kind = record.pop("k")
        self._writer.write({"k": kind, "t": record.pop("t", None) or time.time(), **record})

    def _fail(self, error: Exception) -> None:
        self._failed = True
        try:
            self._write({"k": "error", "what": f"{type(error).__name__}: {error}"})
        except OSError as disk:
            print(f"lockstep: the probe failed ({error}) and cannot say so in its ledger: {disk}", file=sys.stderr)

    def _forget(self) -> None:
        # A forked child (a data loader's worker) shares the file but not the thread: it must stay silent.
        self._stop = self._failed = True
