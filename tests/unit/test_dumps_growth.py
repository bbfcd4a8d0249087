"""What `lockstep dumps` costs grows no faster than its input: in instructions, counted, and in memory.

Jobs of many shapes are read and judged at one size and at four times that size. Instructions are those of
Python's machine, which are the same on every run; what a built-in function does is not seen by them, but most
of it is in the memory.
"""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import pytest
from dump_files import Rank

from lockstep.dumps import DumpError, DumpSet, judge
from lockstep.dumps.model import Dump, GroupKey, Operations
from lockstep.dumps.read import parse
from lockstep.report import to_json

_TIMES = 4
_SLACK = 1.7
"""A logarithm, and what is done once."""


class Shape(NamedTuple):
    """A job; `grows` is what there is more of in a larger one."""

    grows: str = "records"
    backend: str = "nccl"
    named: bool = True
    described: str = "tp"
    ring: bool = False  # each rank is in two groups, and waits for the next rank in one of them
    state: str = "completed"
    odd: bool = False  # sizes differ between ranks
    varied: bool = False  # and from record to record
    op: str = "all_reduce"
    coalesced: bool = False
    transfers: bool = False
    spread: bool = False  # ranks begin at different numbers, and all end at the same
    cut: float = 1.0  # how much of the first file is there


def dumps(shape: Shape, size: int) -> list[bytes]:
    n = {grown: size if grown == shape.grows else few for grown, few in _FEW.items()}
    return [_rank(shape, n, r).pickled() for r in range(n["dumps"])]


_FEW = {"dumps": 3, "groups": 2, "records": 3, "members": 0}


def _rank(shape: Shape, n: dict[str, int], r: int) -> Rank:
    world = max(n["dumps"], n["members"])
    if shape.ring:
        before, after = (r - 1) % world, (r + 1) % world
        groups = {f"g{r}": (shape.described, [before, r]), f"g{after}": (shape.described, [r, after])}
        names = list(groups)[:1]
    else:
        names = [f"g{g}" if shape.named else "" for g in range(n["groups"])]
        groups = {name: (shape.described, list(range(world))) for name in names}
    rank = Rank(r, groups, backend=shape.backend, start=5 if shape.spread else 0)
    for g, name in enumerate(names):
        rank.seqs[name] = r if shape.spread else 0
        for i in range(n["records"]):
            size = 1 + (r if shape.odd else 0) + (i if shape.varied else 0)
            if shape.transfers:
                to = "send {}->{}" if r % 2 == 0 else "recv {}<-{}"
                rank.transfer(name, to.format(r, r ^ 1), size, state=shape.state)
            else:
                dtype = ("Float", "Half")[i % 2 if shape.varied else 0]
                same = shape.coalesced and i > 0
                entry = rank.issue(name, shape.op, size, dtype, state=shape.state, same=same)
                entry["pg_id"] = g
        if shape.spread and not shape.transfers:
            rank.seqs[name] = world + n["records"]
            rank.issue(name, shape.op, state=shape.state)["pg_id"] = g
    if shape.varied:
        rank.entries[1:] = rank.entries[:0:-1] if shape.transfers else rank.entries[1:]
    return rank


def judged(files: list[bytes], cut: float = 1.0) -> str:
    found = read(files, cut)
    return json.dumps(to_json(judge(found))) if found.dumps or found.damaged else ""


def read(files: list[bytes], cut: float = 1.0) -> DumpSet:
    found = DumpSet()
    for r, data in enumerate(files):
        part = data[: int(len(data) * cut)] if r == 0 else data
        try:
            dump = parse(part, Dump(f"r{r}", "r", r, ""), found.operations)
        except DumpError as error:
            found.failed.append(error)
        else:
            (found.damaged if dump.damage else found.dumps).append(dump)
    return found


def instructions(function: Callable[[], object]) -> int:
    done = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        done += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return done


def memory(function: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def excess(shape: Shape, size: int) -> tuple[float, float, float]:
    """By how much more than the input grows the judge's instructions, the memory of both and the output do,
    when the job is larger.
    """
    costs = []
    for n in (size, size * _TIMES):
        files = dumps(shape, n)
        judged(files, shape.cut)  # what is worked out once and kept
        found = read(files, shape.cut)
        done = instructions(lambda found=found: judge(found))  # type: ignore[misc]
        peak = memory(lambda files=files: judged(files, shape.cut))  # type: ignore[misc]
        costs.append((done, peak, len(judged(files, shape.cut)), sum(map(len, files))))
    small, large = costs
    more = max(_TIMES, large[3] / small[3])
    return tuple(large[i] / max(small[i], 1) / more for i in range(3))  # type: ignore[return-value]


_ONCE_TOO_EXPENSIVE = [
    (Shape(grows="records", transfers=True, varied=True, state="scheduled"), 150),
    (Shape(grows="records", coalesced=True, varied=True), 400),
    (Shape(grows="dumps", ring=True, state="scheduled"), 40),
]
"""And the size at which that shows; fuzz/growth.py draws other shapes."""


@pytest.mark.parametrize(("shape", "size"), _ONCE_TOO_EXPENSIVE)
def test_cost_grows_no_faster_than_the_input(shape: Shape, size: int) -> None:
    assert max(excess(shape, size)) < _SLACK


def test_groups_without_a_list_of_ranks_are_not_compared_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, compared = 200, 0
    found = read(dumps(Shape(grows="groups", backend="gloo"), n))
    equal = GroupKey.__eq__

    def counted(one: GroupKey, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    monkeypatch.setattr(GroupKey, "__eq__", counted)
    judge(found)
    assert compared < 20 * n


def test_the_count_of_instructions_sees_what_grows_faster() -> None:
    def pairs(n: int) -> int:
        return instructions(lambda: [a for a in range(n) for b in range(n) if a == b])

    assert pairs(80) / pairs(20) > _TIMES * _SLACK


@pytest.mark.parametrize("key", ["process_group", "profiling_name", "filename"])
def test_a_text_that_records_share_is_not_copied_for_each_of_them(key: str) -> None:
    """A pickle refers to a string again in two bytes: a long one may be in every record."""
    long = "x" * 500_000
    rank = Rank(0, {"0": ("tp", [0, 1])})
    for i in range(300):
        entry = rank.issue("0", "all_reduce", i + 1, state="scheduled")
        if key == "filename":
            entry["frames"] = [{"name": "f", "filename": f"/torch/{long}", "line": 1}] * 20
        else:
            entry[key] = ("0", long) if key == "process_group" else f"nccl:{long}"
    data = rank.pickled()
    assert len(data) < 1_000_000
    assert memory(lambda: judged([data])) < 20_000_000


def test_ranks_that_all_dumps_share_are_there_once() -> None:
    world = 2_000
    groups = {"0": ("default_pg", list(range(world)))}
    files = []
    for r in range(0, world, 10):
        rank = Rank(r, groups)
        rank.issue("0", "all_reduce")
        files.append(rank.pickled())
    operations = Operations()
    read = [parse(data, Dump(f"r{r}", "r", r * 10, ""), operations) for r, data in enumerate(files)]
    assert len({id(dump.ranks["0"]) for dump in read}) == 1
