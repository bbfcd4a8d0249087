"""One record, one operation: a live job's ledger and its dump say the same of every operation torch names.

The names are those of torch's `ProcessGroupNCCL.cpp` and `ProcessGroupGloo.cpp` and of its own analyzer
(`torch/distributed/flight_recorder/components/types.py`, which has those of torchcomms, too).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dump_files import Rank
from ledgers import Issue, Job, Pass, Proc

from lockstep.dumps.model import Dump, Operations
from lockstep.dumps.read import parse
from lockstep.flight_records import RULES, call, dtype_of, together
from lockstep.inside.flight_recorder import _entry, _sizes
from lockstep.record import read_directory
from lockstep.verdict import Kind, judge

Shapes = list[list[int]]
WORLD = 4
EIGHT: Shapes = [[8]]
GATHERED: Shapes = [[32]]
PARTS: Shapes = [[8]] * WORLD

NCCL: list[tuple[str, Shapes, Shapes, int | None]] = [
    ("all_reduce", EIGHT, EIGHT, 8),
    ("all_reduce_sparse", EIGHT, EIGHT, 8),
    ("allreduce_coalesced", [[3], [5]], [[3], [5]], 8),
    ("all_reduce_barrier", [[1]], [[1]], 1),
    ("barrier", [], [], 0),
    ("broadcast", EIGHT, EIGHT, 8),
    ("_broadcast_oop", EIGHT, EIGHT, 8),
    ("reduce", EIGHT, EIGHT, 8),
    ("_reduce_oop", EIGHT, EIGHT, 8),
    ("all_gather", EIGHT, [[WORLD, 8]], 8),
    ("_all_gather_base", EIGHT, GATHERED, 8),
    ("all_gather_single", EIGHT, GATHERED, 8),
    ("all_gather_into_tensor_coalesced", [[3], [5]], [[12], [20]], 8),
    ("ALLGATHER_coalesced", EIGHT, GATHERED, 8),
    ("reduce_scatter", [[WORLD, 8]], EIGHT, 32),
    ("_reduce_scatter_base", GATHERED, EIGHT, 32),
    ("reduce_scatter_single", GATHERED, EIGHT, 32),
    ("reduce_scatter_tensor_coalesced", [[12], [20]], [[3], [5]], 32),
    ("REDUCE_SCATTER_coalesced", GATHERED, EIGHT, 32),
    ("gather", EIGHT, PARTS, 8),
    ("gather", EIGHT, [], 8),
    ("scatter", PARTS, EIGHT, 8),
    ("scatter", [], EIGHT, 8),
    ("all_to_all", EIGHT, [[6]], None),
    ("all_to_all_single", EIGHT, [[6]], None),
    ("all_to_all_v_single", [[4]], [[6]], None),
    ("all_gather_v", [[3]], [[20]], None),
    ("reduce_scatter_v", [[20]], [[3]], None),
    ("coalesced", [], [], 0),
    ("split", [], [], 0),
    ("new_window", EIGHT, EIGHT, 8),
]
"""Operation, shapes in and out as one rank of four may record them, and the count all must agree on."""
GLOO: list[tuple[str, Shapes, Shapes, int | None]] = [
    ("all_reduce", EIGHT, EIGHT, 8),
    ("sparse_all_reduce", EIGHT, EIGHT, 8),
    ("broadcast", EIGHT, EIGHT, 8),
    ("reduce", EIGHT, EIGHT, 8),
    ("all_gather", EIGHT, [[WORLD, 8]], 8),
    ("reduce_scatter", PARTS, EIGHT, 32),
    ("gather", EIGHT, [[WORLD, 8]], 8),
    ("gather", EIGHT, [], 8),
    ("scatter", [[WORLD, 8]], EIGHT, 8),
    ("scatter", [], EIGHT, 8),
    ("all_to_all", EIGHT, [[6]], None),
    ("barrier", [], [], 0),
]
TABLE = [("nccl", *row) for row in NCCL] + [("gloo", *row) for row in GLOO]


def recorded(backend: str, op: str, given: Shapes, taken: Shapes) -> Rank:
    rank = Rank(0, {"7": ("tp", list(range(WORLD)))}, backend=backend)
    rank.issue("7", op, sizes=(given, taken))
    return rank


def live(rank: Rank) -> list[tuple[str, str, int | None]]:
    sizes = _sizes(rank.top()["pg_config"])
    return [(e.op, e.dtype, e.n) for e in (_entry(0, record, sizes) for record in rank.entries)]


def dumped(rank: Rank) -> list[tuple[str, str, int | None]]:
    operations = Operations()
    (trace,) = parse(rank.pickled(), Dump("x", "r", 0, ""), operations).traces.values()
    return [(o.op, o.dtype, o.n) for o in (operations.by_number[number] for number in trace.calls)]


@pytest.mark.parametrize(("backend", "op", "given", "taken", "n"), TABLE)
def test_live_and_dump_agree_on_every_operation(
    backend: str, op: str, given: Shapes, taken: Shapes, n: int | None
) -> None:
    rank = recorded(backend, op, given, taken)
    dtype = "Float" if given or taken else ""
    assert live(rank) == dumped(rank) == [(op, dtype, n)]


@pytest.mark.parametrize(("backend", "op", "given", "taken", "n"), TABLE)
def test_another_size_is_another_operation_unless_it_may_differ(
    backend: str, op: str, given: Shapes, taken: Shapes, n: int | None
) -> None:
    def larger(shapes: Shapes) -> Shapes:
        return [[*shape[:-1], shape[-1] + 1] for shape in shapes]

    one, other = (
        recorded(backend, op, *shapes) for shapes in ((given, taken), (larger(given), larger(taken)))
    )
    assert (live(one) == live(other)) == (n is None or not (given or taken))
    assert live(other) == dumped(other)


@pytest.mark.parametrize(
    ("op", "given", "taken"),
    [
        (op, given, taken)
        for op, given, taken, n in NCCL
        if n and given and taken and op not in ("gather", "scatter")
    ],
)
def test_an_output_of_the_wrong_size_is_seen_live_and_in_a_dump(
    op: str, given: Shapes, taken: Shapes
) -> None:
    wrong = recorded("nccl", op, given, [*taken, [1]])
    elements = sum(a * (b or 1) for a, b in ((s[0], s[1] if len(s) > 1 else 1) for s in taken)) + 1
    assert live(wrong) == dumped(wrong)
    assert live(wrong)[0][0] == f"{op} into {elements}"


def test_an_output_for_another_number_of_ranks_is_seen_where_their_number_is_known() -> None:
    wrong = recorded("nccl", "_all_gather_base", EIGHT, [[8 * (WORLD + 1)]])
    assert live(wrong) == dumped(wrong) == [("_all_gather_base into 40", "Float", 8)]
    unknown = recorded("gloo", "all_gather", EIGHT, [[8 * (WORLD + 1)]])
    assert live(unknown) == dumped(unknown) == [("all_gather", "Float", 8)]


def test_sends_and_receives_name_the_other_side() -> None:
    assert call("nccl:send 0->3", 8, 8, "Float", 4) == ("nccl", "send", "Float", 8, False, 3)
    assert call("nccl:recv 3<-0", None, 8, "Float", 4) == ("nccl", "recv", "Float", 8, False, 0)


def test_types_in_and_out_are_told_each_once() -> None:
    assert dtype_of(["Float"], ["Float", "Half"]) == "Float/Half"
    assert dtype_of([], []) == ""


def test_parts_of_a_coalesced_operation_are_one_in_a_name_of_bounded_length() -> None:
    whole: Any = ("_all_gather_base", "Float", 3)
    for _ in range(1000):
        whole = together(whole, ("_all_gather_base", "Half", 2))
    assert whole.n == 2003
    assert len(whole.op) < 220
    assert len(whole.dtype) < 220
    assert together(("all_reduce", "Float", 3), ("coalesced", "", 0)) == ("all_reduce+coalesced", "Float", 3)


def test_what_loads_in_the_jobs_processes_stays_light() -> None:
    heavy = "{'msgspec', 'rich', 'typer', 'torch'}"
    code = f"import sys, lockstep.inside.flight_recorder; print(sorted({heavy} & {{*sys.modules}}))"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == "[]"


def trainer_of_rules(rank: int, rules: int) -> Proc:
    op = ("all_gather", "Float", None if rules == 1 else 8)
    groups = {"trainer.world": ((0, 1, 2), rank)}
    program = [Pass("train begin"), Issue("trainer.world", op), Pass("step", 1), Pass("train end")]
    return Proc("trainer", "rank", rank, groups, program)


@pytest.mark.parametrize(
    ("rules", "kind"),
    [((1, 1, 1), Kind.IN_STEP), ((RULES,) * 3, Kind.IN_STEP), ((RULES, 1, RULES), Kind.INCOMPLETE)],
)
def test_ledgers_are_compared_with_those_of_their_own_rules_only(
    rules: tuple[int, ...], kind: Kind, tmp_path: Path
) -> None:
    job = Job([trainer_of_rules(rank, made) for rank, made in enumerate(rules)])

    def name_rules(name: str, data: bytes) -> bytes:
        made = rules[int(name.split("-")[2])]
        return data if made == 1 else data.replace(b'"k": "process"', b'"k": "process", "rules": 2', 1)

    found = judge(read_directory(job.write(tmp_path, change=name_rules)))
    assert found.kind is kind, found.sentence
    told = [problem.what for problem in found.problems]
    assert any("rules 1: expected them by rules 2" in what for what in told) == (kind is Kind.INCOMPLETE)
