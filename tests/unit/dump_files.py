"""Flight recorder dumps as torch lays them out, of jobs that went wrong in a known way."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = "2.9"
_SITE = "/usr/lib/python3/site-packages"
FRAMES = [
    {"name": name, "filename": f"{_SITE}/{path}", "line": line}
    for name, path, line in [
        ("all_reduce", "torch/distributed/distributed_c10d.py", 2924),
        ("wrapper", "torch/distributed/c10d_logger.py", 81),
        ("reduce", "model/parallel.py", 41),
        ("forward", "model/layers.py", 118),
        ("_call_impl", "torch/nn/modules/module.py", 1784),
        ("forward", "model/block.py", 77),
        ("step", "trainer/loop.py", 210),
        ("train", "trainer/loop.py", 96),
        ("main", "trainer/__main__.py", 12),
    ]
]


class Long(int):
    """An integer that is written in eight bytes whatever its value, as times are."""


def torch_pickle(value: Any) -> bytes:
    """As `torch::jit::Pickler` writes it: every string remembered, dicts that occur twice, too; lists by MARK
    and APPENDS.
    """
    out = bytearray(b"\x80\x02")
    numbers: dict[str | int, int] = {}
    again: dict[int, int] = {}

    def count(item: Any) -> None:
        if isinstance(item, dict):
            again[id(item)] = again.get(id(item), 0) + 1
            if again[id(item)] > 1:
                return
            for part in item.values():
                count(part)
        elif isinstance(item, list):
            for part in item:
                count(part)

    def put(key: str | int) -> None:
        number = numbers[key] = len(numbers)
        out.extend(b"q" + bytes((number,)) if number < 256 else b"r" + struct.pack("<I", number))

    def get(key: str | int) -> bool:
        number = numbers.get(key)
        if number is None:
            return False
        out.extend(b"h" + bytes((number,)) if number < 256 else b"j" + struct.pack("<I", number))
        return True

    def write(item: Any) -> None:
        if item is None:
            out.extend(b"N")
        elif isinstance(item, bool):
            out.extend(b"\x88" if item else b"\x89")
        elif isinstance(item, Long) or (isinstance(item, int) and not -(2**31) <= item < 2**31):
            out.extend(b"\x8a\x08" + struct.pack("<q", item))
        elif isinstance(item, int):
            out.extend(
                b"K" + bytes((item,)) if 0 <= item < 256
                else b"M" + struct.pack("<H", item) if 0 <= item < 65536
                else b"J" + struct.pack("<i", item)
            )  # fmt: skip
        elif isinstance(item, float):
            out.extend(b"G" + struct.pack(">d", item))
        elif isinstance(item, str):
            if not get(item):
                data = item.encode()
                out.extend(b"X" + struct.pack("<I", len(data)) + data)
                put(item)
        elif isinstance(item, tuple):
            for part in item:
                write(part)
            out.extend(b"\x86")
        elif isinstance(item, list):
            out.extend(b"](")
            for part in item:
                write(part)
            out.extend(b"e")
        elif not get(id(item)):
            out.extend(b"}(")
            for key, part in item.items():
                write(key)
                write(part)
            out.extend(b"u")
            if again[id(item)] > 1:
                put(id(item))

    count(value)
    write(value)
    return bytes(out + b".")


@dataclass
class Rank:
    """One rank's recorder. `issue` records a collective, `transfer` a send or receive."""

    rank: int
    groups: dict[str, tuple[str, list[int]]]
    """The groups it is in: name -> description, ranks."""
    backend: str = "nccl"
    start: int = 0
    """Records that were overwritten before the first that is there."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    p2p: dict[str, int] = field(default_factory=dict)

    def issue(self, group: str, op: str, n: int = 1024, dtype: str = "Float", *, state: str = "completed",
              sizes: tuple[list[Any], list[Any]] | None = None,
              same: bool = False) -> dict[str, Any]:  # fmt: skip
        """`same`: in the sequence number of the one before, as operations of a coalesced one."""
        ranks = len(self.groups[group][1])
        if not same:
            self.seqs[group] = self.seqs.get(group, 0) + 1
        given, taken = sizes or {
            "_all_gather_base": ([[n]], [[n * ranks]]),
            "_reduce_scatter_base": ([[n * ranks]], [[n]]),
        }.get(op, ([[n]], [[n]]))
        return self._record(group, op, given, taken, dtype, state, p2p=False)

    def transfer(self, group: str, op: str, n: int = 1024, *, state: str = "completed") -> dict[str, Any]:
        """`op` is `send 0->1` or `recv 1<-0`, in ranks of the group."""
        self.p2p[group] = self.p2p.get(group, 0) + 1
        return self._record(group, op, [[n]], [[n]], "Float", state, p2p=True)

    def _record(
        self, group: str, op: str, given: Any, taken: Any, dtype: str, state: str, *, p2p: bool
    ) -> dict[str, Any]:
        number = self.start + len(self.entries)
        created = 1_764_000_000_000_000_000 + number * 1_000_000 + self.rank
        gloo = self.backend == "gloo"
        done = state == "completed"
        entry = {
            "frames": FRAMES,
            "record_id": number,
            "pg_id": list(self.groups).index(group),
            "process_group": (group, self.groups[group][0]),
            "thread_name": "pt_main_thread",
            "thread_id": "140251645322944",
            "collective_seq_id": self.seqs.get(group, 0),
            "p2p_seq_id": self.p2p.get(group, 0),
            "op_id": number + 1,
            "profiling_name": f"{self.backend}:{op}",
            "time_created_ns": Long(created),
            "input_sizes": given,
            "input_dtypes": [dtype] * len(given),
            "output_sizes": taken,
            "output_dtypes": [dtype] * len(taken),
            "state": "scheduled" if gloo else state,
            "time_discovered_started_ns": Long(created + 1) if state == "started" else None,
            "time_discovered_completed_ns": Long(created + 500_000) if done and not gloo else None,
            "retired": done,
            "timeout_ms": 600_000,
            "is_p2p": p2p,
        }
        self.entries.append(entry)
        return entry

    def top(self, version: str = VERSION) -> dict[str, Any]:
        config = {
            name: {"name": name, "desc": desc, "ranks": json.dumps(ranks)}
            for name, (desc, ranks) in self.groups.items()
        }
        if self.backend == "gloo":
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        status = {
            str(i): {
                "last_enqueued_collective": self.seqs.get(name, -1),
                "last_started_collective": -1,
                "last_completed_collective": self.seqs.get(name, -1),
            }
            for i, name in enumerate(self.groups)
        }
        return {
            "version": version,
            "pg_config": config,
            "nccl_version": "2.27.3",
            "pg_status": status,
            "entries": self.entries,
        }

    def pickled(self, version: str = VERSION) -> bytes:
        return torch_pickle(self.top(version))

    def stored_again(self, protocol: int = 2) -> bytes:
        """As Python writes what it has loaded from such a dump."""
        top = self.top()
        plain = [{k: int(v) if isinstance(v, Long) else v for k, v in e.items()} for e in self.entries]
        return pickle.dumps(top | {"entries": plain}, protocol)

    def json(self, version: str = VERSION) -> bytes:
        """As `dump_json`: keys sorted, no stacks, 0 for a time that is not there, and no `entries` where
        there is none.
        """
        top = self.top(version)
        top["pg_status"] = {k: {name: str(n) for name, n in v.items()} for k, v in top["pg_status"].items()}
        top["entries"] = [
            {k: 0 if v is None and k.startswith("time_") else v for k, v in e.items() if k != "frames"}
            for e in self.entries
        ]
        if not self.entries:
            del top["entries"]
        return json.dumps(top, sort_keys=True, separators=(",", ":")).encode()


WORLD = "0"
PATTERN = [("tp", "all_reduce", 4096), (WORLD, "_all_gather_base", 1000), ("tp", "all_reduce", 4096),
           (WORLD, "_reduce_scatter_base", 1000), (WORLD, "all_reduce", 8)]  # fmt: skip


def job(world: int, records: int, *, tp: int = 4, start: int = 0, culprit: int | None = None,
        only: Iterable[int] | None = None) -> dict[int, Rank]:  # fmt: skip
    """Ranks of a job in step: a world group and tensor-parallel groups of `tp`, `records` records each, all
    completed.

    `only`: the ranks to make, all unless given.
    """
    made = {}
    for r in only if only is not None else range(world):
        first = r // tp * tp
        groups = {
            WORLD: ("default_pg", list(range(world))),
            str(1 + r // tp): ("tp", list(range(first, first + tp))),
        }
        rank = made[r] = Rank(r, groups, start=start)
        for i in range(records):
            step(rank, i)
    return made


def name_of(rank: Rank, group: str) -> str:
    return WORLD if group == WORLD else next(name for name, (desc, _) in rank.groups.items() if desc == group)


def step(rank: Rank, i: int, **changes: Any) -> dict[str, Any]:
    group, op, n = PATTERN[i % len(PATTERN)]
    return rank.issue(name_of(rank, group), **{"op": op, "n": n, **changes})


CULPRIT = 5


def behind(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        if r != CULPRIT:
            rank.issue(WORLD, "all_reduce", 8, state="scheduled")


def missing_dump(ranks: dict[int, Rank]) -> None:
    behind(ranks)
    ranks.pop(CULPRIT, None)


def size(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        rank.issue(WORLD, "all_reduce", 9 if r == CULPRIT else 8, state="scheduled")


def output_size(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        n = len(rank.groups[WORLD][1])
        rank.issue(WORLD, "_all_gather_base", sizes=([[8]], [[8 * n + (r == CULPRIT)]]), state="scheduled")


def kind(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        rank.issue(WORLD, "_all_gather_base" if r == CULPRIT else "all_reduce", 8, state="scheduled")


def dtype(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        rank.issue(WORLD, "all_reduce", 8, "Half" if r == CULPRIT else "Float", state="scheduled")


def order(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        for op, n in [("broadcast", 7), ("all_reduce", 8)][:: -1 if r == CULPRIT else 1]:
            rank.issue(WORLD, op, n, state="scheduled")


def order_across_groups(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        for group in ("tp", WORLD)[:: -1 if r == CULPRIT else 1]:
            rank.issue(name_of(rank, group), "all_reduce", 8, state="scheduled")


def long_ago(ranks: dict[int, Rank]) -> None:
    """Sizes differed, the collective completed all the same, and the job went on."""
    for r, rank in ranks.items():
        rank.issue(WORLD, "broadcast", 9 if r == CULPRIT else 8)
        for i in range(40):
            step(rank, i)


def stalled(ranks: dict[int, Rank]) -> None:
    for rank in ranks.values():
        rank.issue(WORLD, "all_reduce", 8, state="started")


def one_not_done(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        rank.issue(WORLD, "all_reduce", 8, state="started" if r == CULPRIT else "completed")


def all_to_all(ranks: dict[int, Rank]) -> None:
    for r, rank in ranks.items():
        rank.issue(WORLD, "all_to_all", sizes=([[10 + r + (r == CULPRIT)]], [[10 + r]]), state="scheduled")


def other_rings(ranks: dict[int, Rank]) -> None:
    """In step, but one rank has recorded more in a group of its own, so its ring begins elsewhere."""
    for r, rank in ranks.items():
        if r == CULPRIT:
            rank.groups["99"] = ("solo", [r])
            for _ in range(30):
                rank.issue("99", "all_reduce", 8)
            lost = rank.entries[:30]
            rank.entries = rank.entries[30:]
            rank.start += len(lost)


def lone_send(ranks: dict[int, Rank]) -> None:
    if 0 in ranks:
        ranks[0].transfer(WORLD, f"send 0->{CULPRIT}", state="scheduled")


def in_step(ranks: dict[int, Rank]) -> None:
    pass


DEFECTS: dict[str, tuple[Callable[[dict[int, Rank]], None], str]] = {
    f.__name__: (f, verdict)
    for f, verdict in [
        (in_step, "in step"), (behind, "stuck"), (missing_dump, "incomplete"), (size, "stuck"),
        (output_size, "stuck"), (kind, "stuck"), (dtype, "stuck"), (order, "stuck"),
        (order_across_groups, "stuck"), (long_ago, "diverged"), (stalled, "stalled"),
        (one_not_done, "stalled"), (all_to_all, "stuck"), (other_rings, "in step"), (lone_send, "stuck"),
    ]
}  # fmt: skip
"""Each defect and the verdict that it must get."""


def write(ranks: dict[int, Rank], folder: Path, *, prefix: str = "nccl_trace_rank_") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for r, rank in ranks.items():
        (folder / f"{prefix}{r}").write_bytes(rank.pickled())
