"""Reads torch's flight recorder in the process that it records.

Source: torch 2.8 `torch/csrc/distributed/c10d/FlightRecorder.hpp` and the bindings `_dump_fr_trace` and
`_dump_nccl_trace` in `torch._C._distributed_c10d`. Both backends write to it: NCCL's records are dumped by
the second, gloo's by the first. The recorder keeps the last `TORCH_FR_BUFFER_SIZE` records in a ring.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

from lockstep.flight_records import Call, call, dtype_of

Pg = tuple[int, int]
"""A group as the recorders know it: which recorder (gloo's and NCCL's count their groups apart), and its
number there.
"""


NCCL = 1
"""Number of NCCL's recorder."""


class Entry(NamedTuple):
    """One collective as the recorder holds it."""

    pg: Pg
    names: tuple[str, str]
    """The group's name and description, both empty for a group made outside torch's registry."""
    key: int
    """The number that the group's status counts in, see `Status`."""
    seq: int
    """Collectives of the group so far, this one included: the same on every rank that has kept step."""
    op: str
    dtype: str
    n: int | None
    t: float
    """When it was issued, in seconds since the epoch."""


@dataclass(frozen=True)
class Status:
    """Per group: keys of the last collective enqueued and completed, 0 before the first.

    On NCCL keys are sequence numbers. On gloo they count point-to-point operations, too, which have no
    records.
    """

    enqueued: dict[Pg, int] = field(default_factory=dict)
    completed: dict[Pg, int] = field(default_factory=dict)


class FlightRecorder:
    """A reader with a memory: `drain` returns each record once, and says how many were overwritten unseen."""

    def __init__(self) -> None:
        """Raises RuntimeError where torch has no recorder that covers gloo."""
        from torch._C import _distributed_c10d as c10d

        if not hasattr(c10d, "_dump_fr_trace"):
            raise RuntimeError(f"torch {version('torch')} has no flight recorder for gloo: no _dump_fr_trace")
        self._dumps = [c10d._dump_fr_trace]
        if hasattr(c10d, "_dump_nccl_trace"):
            self._dumps.append(c10d._dump_nccl_trace)
        self._next = [0] * len(self._dumps)

    def status(self) -> Status:
        """The groups' numbers, without their records (about 0.1 ms)."""
        enqueued: dict[Pg, int] = {}
        completed: dict[Pg, int] = {}
        for i, dump in enumerate(self._dumps):
            for pg, numbers in _load(dump(False, False, False)).get("pg_status", {}).items():
                if (last := numbers["last_enqueued_collective"]) >= 0:
                    enqueued[i, int(pg)] = last
                    completed[i, int(pg)] = max(numbers["last_completed_collective"], 0)
        return Status(enqueued, completed)

    def drain(self) -> tuple[list[Entry], int]:
        """Records since the last call, oldest first, and how many between the two calls were lost.

        Takes 5 to 10 us for each record in the ring, read before or not.
        """
        entries: list[Entry] = []
        lost = 0
        for i, dump in enumerate(self._dumps):
            with _collector_off():
                loaded = _load(dump(True, False, False))
                records = loaded.get("entries", ())
                fresh = [e for e in records if e["record_id"] >= self._next[i]]
                if fresh:
                    lost += fresh[0]["record_id"] - self._next[i]
                    self._next[i] = fresh[-1]["record_id"] + 1
                    ranks = _sizes(loaded.get("pg_config", {}))
                    entries.extend(_entry(i, e, ranks) for e in fresh if not e["is_p2p"])
                del loaded, records, fresh
        return entries, lost

    def retired(self) -> frozenset[tuple[Pg, int]]:
        """Group and key of every record in the ring whose collective is over."""
        found: set[tuple[Pg, int]] = set()
        for i, dump in enumerate(self._dumps):
            with _collector_off():
                records = _load(dump(True, False, False)).get("entries", ())
                found.update(((i, int(e["pg_id"])), _key(e)) for e in records if e["retired"])
                del records
        return frozenset(found)

    def outstanding(self) -> list[dict[str, Any]]:
        """The records of collectives that are not over, without stacks."""
        return [e for dump in self._dumps for e in _load(dump(True, False, True)).get("entries", ())]

    def last_with_stacks(self) -> list[dict[str, Any]]:
        """Every record with the Python stack that issued it. Takes milliseconds a record: only for a job that
        hangs.
        """
        return [e for dump in self._dumps for e in _load(dump(True, True, False)).get("entries", ())]


def _load(dump: bytes) -> dict[str, Any]:
    # Not a file that somebody sent: these bytes were made by torch, in this process, just now.
    loaded: dict[str, Any] = pickle.loads(dump)
    return loaded


@contextmanager
def _collector_off() -> Iterator[None]:
    # A thousand records are ten thousand objects. With the garbage collector on, those of a few drains would
    # count as long-lived and bring on a full collection, a tenth of a second in a process with torch. They
    # are gone before it is on again.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _key(e: dict[str, Any]) -> int:
    key: int = e["collective_seq_id"] if e["profiling_name"].startswith("nccl:") else e["op_id"]
    return key


@lru_cache(maxsize=4096)
def _call(name: str, given: int | None, taken: int | None, dtype: str, size: int | None) -> Call:
    return call(name, given, taken, dtype, size)


def _entry(recorder: int, e: dict[str, Any], ranks: dict[str, int]) -> Entry:
    """`ranks` has how many ranks a group has, by name."""
    inputs, outputs, types = e["input_sizes"], e["output_sizes"], e["input_dtypes"]
    names = tuple(e["process_group"])
    name = e["profiling_name"]
    given = elements(inputs) if inputs else None
    made = _call(
        name,
        given,
        given if outputs == inputs else elements(outputs) if outputs else None,
        types[0] if len(types) == 1 and types == e["output_dtypes"] else dtype_of(types, e["output_dtypes"]),
        ranks.get(names[0]),
    )
    seq = e["collective_seq_id"]
    return Entry(
        (recorder, int(e["pg_id"])),
        names,
        seq if made.backend == "nccl" else e["op_id"],
        seq,
        made.op,
        made.dtype,
        made.n,
        e["time_created_ns"] / 1e9,
    )


def _sizes(config: dict[str, Any]) -> dict[str, int]:
    """How many ranks each group has, by name. gloo does not write it."""
    lists = {name: group.get("ranks", "") for name, group in config.items()}
    return {name: ranks.count(",") + 1 for name, ranks in lists.items() if name and len(ranks) > 2}


def elements(sizes: list[list[int]]) -> int:
    """How many elements tensors of these shapes have together."""
    total = 0
    for shape in sizes:
        n = 1
        for extent in shape:
            n *= extent
        total += n
    return total
