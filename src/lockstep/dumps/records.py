"""One record of the flight recorder, as the keys of every version since 2.1 have it, into the terms of a
ledger.

Sources: torch `NCCLUtils.hpp` (2.4, 2.5), `FlightRecorder.hpp` and `FlightRecorderDetail.hpp` (2.6 on). What
changed in between: data types came with 2.3, `pg_status` with 2.3, threads with 2.5, records of operations
inside a coalesced one with 2.7; 2.10 renamed `nccl_version`. JSON (from torch 2.6 on) has 0 where a pickle
has None, and the numbers of `pg_status` as strings.
"""

from __future__ import annotations

from typing import Any

from lockstep import flight_records
from lockstep.flight_records import Call

from .errors import MAX_NAME, MAX_WORK, Malformed

_TORCH = ("/torch/", "/torch_npu/", "<frozen ", "<string>")
STATES = ("scheduled", "started", "completed")
_MAX_PATH = 4096


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
            raise Malformed(place, f"more than {MAX_WORK} sizes and frames in all")


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
        case [str(name), str(desc)] if max(len(name), len(desc)) <= MAX_NAME:
            return name, desc
    what = f"expected its name and description, of {MAX_NAME} characters at most"
    raise Malformed(place, f"a record's process_group: {what}")


def call(
    entry: dict[str, Any], size: int | None, work: Work, place: int | None
) -> tuple[Call, tuple[int, int]]:
    """What a record asks for, and its elements in and out. `size` is the number of ranks in the group, None
    where it is not known. Raises Malformed.
    """
    name = text(entry, "profiling_name", place)
    op = name.rpartition(":")[2]
    if not op or len(op) == len(name) or len(name) > MAX_NAME:
        what = f"expected backend:operation, of {MAX_NAME} characters at most"
        raise Malformed(place, f"a record's profiling_name: {what}")
    inputs, outputs = entry.get("input_sizes", []), entry.get("output_sizes", [])
    given = work.elements(inputs, "input_sizes", place)
    taken = work.elements(outputs, "output_sizes", place)
    dtype = _dtype(entry, work, place)
    made = flight_records.call(name, given if inputs else None, taken if outputs else None, dtype, size)
    return made, (given, taken)


def _dtype(entry: dict[str, Any], work: Work, place: int | None) -> str:
    both = []
    for key in ("input_dtypes", "output_dtypes"):
        types = entry.get(key, [])
        if type(types) is not list:
            raise Malformed(place, f"{key}: expected a list of strings")
        work.spend(len(types), place)
        if any(type(name) is not str or len(name) > 64 for name in types):
            raise Malformed(place, f"{key}: expected the name of a type")
        both.append(types)
    return flight_records.dtype_of(*both)


def issued_at(entry: dict[str, Any], work: Work, place: int | None) -> str | None:
    """The innermost frame outside torch, `path:line`, in the last two parts of its path or from its package
    on. Raises Malformed.
    """
    frames = entry.get("frames")
    if type(frames) is not list:
        return None
    for frame in frames[:256]:
        if type(frame) is not dict:
            return None
        filename, line = frame.get("filename"), frame.get("line")
        if type(filename) is not str or type(line) is not int or len(filename) > _MAX_PATH:
            return None
        work.spend(1 + len(filename) // 64, place)
        if filename.endswith(".py") and not any(part in filename for part in _TORCH):
            _, package, inside = filename.rpartition("/site-packages/")
            return f"{inside if package else '/'.join(filename.split('/')[-2:])}:{line}"
    return None
