"""Says what a record of torch's flight recorder stands for: the same for a live job and for its dump.

`probe.flight` uses this in the job's processes, `lockstep.dumps` for files, so it imports nothing heavy.
Names of operations are those of torch's `ProcessGroupNCCL.cpp` and `ProcessGroupGloo.cpp`, and of the list in
`torch/distributed/flight_recorder/components/types.py`, which has those of torchcomms, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

RULES = 2
"""Changes when one record becomes another operation, type or count than before: such ledgers cannot be
compared. Rules 1 took no count of `all_gather`, `gather`, `scatter` and `reduce_scatter`, had no outputs, and
called everything coalesced `coalesced`.
"""
UNEVEN = frozenset(
    {
        "all_to_all",
        "alltoall",
        "alltoall_base",
        "all_to_all_single",
        "all_to_all_v_single",
        "all_to_allv",
        "all_to_all_v",
        "all_gather_v",
        "reduce_scatter_v",
    }
)
"""Operations in which every rank may give and take another number of elements; what all give is what all
take."""
GATHERS = frozenset(
    {
        "all_gather",
        "_all_gather_base",
        "all_gather_single",
        "all_gather_into_tensor_coalesced",
        "allgather_coalesced",
        "ALLGATHER_coalesced",
    }
)
SCATTERS = frozenset(
    {
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
        "REDUCE_SCATTER_coalesced",
    }
)
ROOTED = frozenset({"gather", "scatter"})
"""Only one rank has the larger side."""
_TRANSFER = re.compile(r"(?:send (\d{1,9})->(\d{1,9})|recv (\d{1,9})<-(\d{1,9}))\Z")
_MAX_JOINED = 200
"""Characters of the name of an operation that is made of several."""


class Call(NamedTuple):
    """What ranks must agree on. `n` counts elements, and is None where they need not agree on it."""

    backend: str
    op: str
    dtype: str
    n: int | None
    uneven: bool = False
    peer: int | None = None
    """Of a send or receive: the other side's rank in the group."""


def call(name: str, given: int | None, taken: int | None, dtype: str, size: int | None) -> Call:
    """Returns what the operation with torch's name `name` (`nccl:all_reduce`) asks for.

    `given` and `taken` are the elements of all inputs and of all outputs, None where there are none; `size`
    is the number of ranks in the group, None where it is not known. An output that has not the size which
    the input asks for is part of the operation: `_all_gather_base into 17`.
    """
    backend, _, op = name.rpartition(":")
    if transfer := _TRANSFER.match(op):
        source, target, _, by = transfer.groups()
        kind = op.partition(" ")[0]
        moved = given if kind == "send" else taken
        return Call(backend, kind, dtype, moved or 0, peer=int(by if source is None else target))
    if op in UNEVEN:
        return Call(backend, op, dtype, None, uneven=True)
    n = taken if op == "scatter" or given is None else given
    if op not in ROOTED and given is not None and taken is not None and not _fits(op, given, taken, size):
        op = f"{op} into {taken}"
    return Call(backend, op, dtype, n or 0)


def _fits(op: str, given: int, taken: int, size: int | None) -> bool:
    """Whether the output has the size that the input asks for: then the input's tells all."""
    if op in GATHERS:
        small, large = given, taken
    elif op in SCATTERS:
        small, large = taken, given
    else:
        return given == taken
    return large == small * size if size else small == large == 0 or (small > 0 and large % small == 0)


def dtype_of(inputs: Iterable[str], outputs: Iterable[str]) -> str:
    """Returns the element types of a record, each once: `Float`, or `Float/Half`."""
    return "/".join(list(dict.fromkeys((*inputs, *outputs)))[:4])


class Coalesced(NamedTuple):
    op: str
    dtype: str
    n: int | None


def together(one: tuple[str, str, int | None], other: tuple[str, str, int | None]) -> Coalesced:
    """Returns the operation, type and count that two records of one sequence number make up.

    NCCL issues what a coalescing manager collects as one collective, and records each part.
    """
    dtype = one[1] if one[1] == other[1] or not other[1] else _joined(one[1], other[1])
    n = None if one[2] is None or other[2] is None else one[2] + other[2]
    return Coalesced(_joined(one[0], other[0]), dtype, n)


def _joined(one: str, other: str) -> str:
    return f"{one}+{other}" if len(one) + len(other) < _MAX_JOINED else f"{one[:180]}..."
