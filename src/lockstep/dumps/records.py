"""One record of the flight recorder, as the keys of every version since 2.1 have it, into the terms of a
ledger.

Sources: torch `NCCLUtils.hpp` (2.4, 2.5), `FlightRecorder.hpp` and `FlightRecorderDetail.hpp` (2.6 on). What
changed in between: data types came with 2.3, `pg_status` with 2.3, threads with 2.5, records of operations
inside a coalesced one with 2.7; 2.10 renamed `nccl_version`. JSON (from torch 2.6 on) has 0 where a pickle
has None, and the numbers of `pg_status` as strings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lockstep.record import Operation

from .errors import MAX_WORK, Malformed

UNEVEN = frozenset(
    {
        "all_to_all",
        "alltoall",
        "alltoall_base",
        "all_to_all_single",
        "all_to_all_v_single",
        "all_to_allv",
        "all_gather_v",
        "reduce_scatter_v",
    }
)
"""Operations in which every rank may give and take another number of elements; what all give is what all
take."""
_GATHERS = frozenset(
    {
        "all_gather",
        "_all_gather_base",
        "all_gather_single",
        "all_gather_into_tensor_coalesced",
        "allgather_coalesced",
    }
)
_SCATTERS = frozenset(
    {"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"}
)
_TRANSFER = re.compile(r"(?:send (\d{1,9})->(\d{1,9})|recv (\d{1,9})<-(\d{1,9}))\Z")
_TORCH = ("/torch/", "/torch_npu/", "<frozen ", "<string>")
STATES = ("scheduled", "started", "completed")


@dataclass(slots=True)
class Call:
    """What one record asks for: the part of it that is the same each time the same line of a program runs."""

    backend: str
    operation: Operation
    totals: tuple[int, int] | None  # elements in and out, for operations in which they may differ
    peer: int | None  # of a send or receive


class Work:
    """Counts what it takes to multiply sizes out, which a small file could make endless by sharing lists."""

    def __init__(self) -> None:
        self.left = MAX_WORK

    def elements(self, sizes: Any, key: str, place: int | None) -> int:
        """How many elements tensors of these shapes have together."""
        if type(sizes) is not list:
            raise Malformed(place, f"{key}: expected a list of shapes")
        total = 0
        for shape in sizes:
            if type(shape) is not list:
                raise Malformed(place, f"{key}: expected a shape, a list of integers")
            self.spend(len(shape) + 1, place)
            n = 1
            for extent in shape:
                if type(extent) is not int or extent < 0:
                    raise Malformed(place, f"{key}: expected extents of 0 or more")
                n *= extent
                if n >= 1 << 62:
                    raise Malformed(place, f"{key}: more elements than a tensor can have")
            total += n
        return total

    def spend(self, amount: int, place: int | None) -> None:
        self.left -= amount
        if self.left < 0:
            raise Malformed(place, f"more than {MAX_WORK} sizes in all")


def text(entry: dict[str, Any], key: str, place: int | None) -> str:
    value = entry.get(key)
    if type(value) is not str:
        raise Malformed(place, f"a record's {key}: expected a string")
    return value


def number(entry: dict[str, Any], key: str, place: int | None) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise Malformed(place, f"a record's {key}: expected an integer of 0 or more")
    return value


def names(entry: dict[str, Any], place: int | None) -> tuple[str, str]:
    """The group's name and description."""
    match entry.get("process_group"):
        case [str(name), str(desc)]:
            return name, desc
    raise Malformed(place, "a record's process_group: expected its name and description")


def call(entry: dict[str, Any], size: int | None, work: Work, place: int | None) -> Call:
    """`size` is the number of ranks in the group, None where it is not known."""
    backend, colon, op = text(entry, "profiling_name", place).rpartition(":")
    if not colon or not op:
        raise Malformed(place, "a record's profiling_name: expected backend:operation")
    given = work.elements(entry.get("input_sizes", []), "input_sizes", place)
    taken = work.elements(entry.get("output_sizes", []), "output_sizes", place)
    dtype = _dtype(entry, work, place)
    transfer = _TRANSFER.match(op)
    if transfer:
        source, target, _, by = transfer.groups()
        peer = int(target) if source is not None else int(by)
        kind = op.partition(" ")[0]
        return Call(backend, Operation(kind, dtype, given if kind == "send" else taken), None, peer)
    if op in UNEVEN:
        return Call(backend, Operation(op, dtype, None), (given, taken), None)
    rooted = op in ("gather", "scatter")  # only one rank has the larger side
    n = taken if op == "scatter" or not entry.get("input_sizes") else given
    if (
        not rooted
        and entry.get("input_sizes")
        and entry.get("output_sizes")
        and not _fits(op, given, taken, size)
    ):
        op = f"{op} into {taken}"
    return Call(backend, Operation(op, dtype, n), None, None)


def _fits(op: str, given: int, taken: int, size: int | None) -> bool:
    """Whether the output has the size that the input asks for: then the input's tells all."""
    small, large = (taken, given) if op in _SCATTERS else (given, taken)
    if op not in _GATHERS and op not in _SCATTERS:
        return given == taken
    return large == small * size if size else small == large == 0 or (small > 0 and large % small == 0)


def _dtype(entry: dict[str, Any], work: Work, place: int | None) -> str:
    found: dict[str, None] = {}
    for key in ("input_dtypes", "output_dtypes"):
        types = entry.get(key, [])
        if type(types) is not list:
            raise Malformed(place, f"{key}: expected a list of strings")
        work.spend(len(types), place)
        for name in types:
            if type(name) is not str or len(name) > 64:
                raise Malformed(place, f"{key}: expected the name of a type")
            found[name] = None
    return "/".join(list(found)[:4])


def issued_at(entry: dict[str, Any]) -> str | None:
    """The innermost frame outside torch, `path:line`, in the last two parts of its path or from its package
    on.
    """
    frames = entry.get("frames")
    if type(frames) is not list:
        return None
    for frame in frames[:256]:
        if type(frame) is not dict:
            return None
        filename, line = frame.get("filename"), frame.get("line")
        if type(filename) is not str or type(line) is not int:
            return None
        if filename.endswith(".py") and not any(part in filename for part in _TORCH):
            _, package, inside = filename.rpartition("/site-packages/")
            return f"{inside if package else '/'.join(filename.split('/')[-2:])}:{line}"
    return None
