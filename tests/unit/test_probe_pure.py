"""The probe's parts that need neither torch nor a process group: digest, numbers, table, writer."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.inside.counters import Counted, Counts, GroupTable
from lockstep.inside.digest import MAX_PAIRS, Stream
from lockstep.inside.flight_recorder import Entry, Status, elements
from lockstep.inside.group_names import Group, GroupNames
from lockstep.inside.numbering import Numbers
from lockstep.inside.writer import LedgerWriter
from lockstep.record import read_ledger

CALLS = st.lists(st.tuples(st.sampled_from(["all_reduce", "broadcast"]), st.integers(0, 3)))


def _stream(calls: list[tuple[str, int]]) -> Stream:
    stream = Stream()
    for op, n in calls:
        stream.add(n + (10 if op == "broadcast" else 0), op, "Float", n)
    return stream


@given(CALLS, CALLS)
def test_digests_are_equal_just_where_the_calls_are(
    one: list[tuple[str, int]], other: list[tuple[str, int]]
) -> None:
    assert (_stream(one).digest == _stream(other).digest) == (one == other)


@given(CALLS, st.integers(0, 20))
def test_runs_are_what_was_issued_since_the_last_time(calls: list[tuple[str, int]], cut: int) -> None:
    stream = _stream(calls[:cut])
    first = stream.take_runs() or []
    for op, n in calls[cut:]:
        stream.add(n + (10 if op == "broadcast" else 0), op, "Float", n)
    runs = [*first, *(stream.take_runs() or [])]
    assert [token for token, repeats in runs for _ in range(repeats)] == [
        n + (10 if op == "broadcast" else 0) for op, n in calls
    ]
    assert all(a[0] != b[0] for a, b in itertools.pairwise(first))
    assert stream.issued == len(calls) == sum(stream.tally.values())


def test_a_stream_that_is_too_long_is_left_out_once() -> None:
    stream = Stream()
    for i in range(MAX_PAIRS):
        stream.add(i % 2, "op", "Int", i % 2)
    assert len(stream.take_runs() or []) == MAX_PAIRS
    for i in range(MAX_PAIRS + 1):
        stream.add(i % 2, "op", "Int", i % 2)
    assert stream.take_runs() is None
    stream.add(0, "op", "Int", 0)
    assert stream.take_runs() == [[0, 1]]
    assert stream.issued == 2 * MAX_PAIRS + 2


@given(st.lists(st.integers(0, 3), min_size=1), st.integers(0, 40))
def test_numbers_skip_what_is_no_collective(sends: list[int], forgotten: int) -> None:
    """Before collective i, `sends[i]` point-to-point operations take a key each."""
    numbers, keys, key = Numbers(), [], 0
    for seq, before in enumerate(sends, 1):
        key += before + 1
        keys.append(key)
        numbers.add(key, seq)
    numbers.forget(forgotten)
    for seq, key in enumerate(keys, 1):
        if key >= forgotten:
            assert numbers.seq(key) == seq
    assert numbers.seq(keys[-1] + 5) == len(sends)
    assert Numbers().seq(3) == 0


def _table(groups: dict[str, Group]) -> tuple[GroupTable, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    names = GroupNames("trainer")
    names.registered = lambda known: {k: v for k, v in groups.items() if k not in known}  # type: ignore[method-assign]
    return GroupTable(names, lines.append), lines


def _entries(*keys: tuple[int, int], n: int = 1) -> list[Entry]:
    return [Entry((0, 0), ("0", ""), key, seq, "all_reduce", "Int", n, float(key)) for key, seq in keys]


def _counts(issued: int, completed: int) -> Counts:
    return Counts(Status({(0, 0): issued}, {(0, 0): completed}), ())


WORLD = {"0": Group("trainer.world", "", "gloo", (0, 1), 0)}


def test_lost_records_are_filled_in_so_that_counts_stay_right() -> None:
    table, lines = _table(WORLD)
    table.absorb(_entries((1, 1), (2, 2)), _counts(2, 2))
    assert table.since_last(_counts(2, 2))[0]["0"][0] == 2
    table.absorb(_entries((8, 8), (9, 9)), _counts(9, 9))
    c, s = table.since_last(_counts(5, 5))
    assert (c["0"][0], c["0"][2]) == (5, {"all_reduce": 2, "unrecorded": 3})
    c, s = table.since_last(_counts(9, 9))
    assert (c["0"][0], c["0"][2]) == (9, {"all_reduce": 4, "unrecorded": 5})
    ops = {line["id"]: line["op"] for line in lines if line["k"] == "op"}
    assert [(ops[op], repeats) for op, repeats in s["0"]] == [("unrecorded", 2), ("all_reduce", 2)]


def test_a_record_that_is_late_is_not_covered_until_it_is_there() -> None:
    table, _ = _table(WORLD)
    table.absorb(_entries((1, 1)), _counts(2, 1))
    assert table.unread(_counts(2, 1)) == 0
    assert not table.covers(_counts(2, 1))
    assert table.pairs(_counts(2, 1)) == {"0": [1, 1]}
    table.absorb(_entries((2, 2)), _counts(2, 1))
    assert table.covers(_counts(2, 1))
    assert table.pairs(_counts(2, 1)) == {"0": [2, 1]}


def test_of_a_wait_whose_record_was_lost_only_the_number_is_told() -> None:
    table, _ = _table(WORLD)
    table.absorb(_entries((1, 1), (4, 4)), _counts(4, 4))
    table.pairs(_counts(4, 4))
    assert table.waiting(_counts(4, 3), frozenset())[0] == {"g": 0, "seq": 4}


def test_what_the_recorder_has_retired_before_the_one_that_waits_counts_as_completed() -> None:
    """Gloo's number of the last that completed had fallen back to 1."""
    table, _ = _table(WORLD)
    table.absorb(_entries((1, 1), (2, 2), (3, 3)), _counts(3, 1))
    table.pairs(_counts(3, 1))
    told = table.waiting(_counts(3, 1), frozenset({((0, 0), 1), ((0, 0), 2)}))[0]
    assert told is not None
    assert told["seq"] == 3
    assert table.pairs(_counts(3, 1)) == {"0": [3, 2]}


def test_a_counted_group_waits_where_it_was_called() -> None:
    table, lines = _table({})
    counted = Counted(Group("weight-sync", "", "none", (0, 1), 0))

    def hang() -> None:
        table.absorb_counted([counted])
        counts = Counts(Status(), ((1, 0),))
        told, only = table.waiting(counts, frozenset())
        assert told is not None
        assert only
        place = told.pop("at")
        assert place.rpartition(":")[0].endswith("test_probe_pure.py")
        assert told == {"g": 0, "seq": 1, "op": "broadcast", "dtype": "float32", "n": 7}

    def wrapper() -> None:
        counted.call("broadcast", "float32", 7, hang)

    wrapper()
    assert (counted.issued, counted.completed) == (1, 1)
    assert [line["name"] for line in lines if line["k"] == "group"] == ["weight-sync"]


def test_elements() -> None:
    assert elements([]) == 0
    assert elements([[]]) == 1
    assert elements([[2, 3], [4]]) == 10


def test_lines_are_whole_and_in_utf_8(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "new" / "ledgers", "trainer-rank-0-1")
    writer.write({"k": "process", "v": 1, "t": 1.5, "side": "trainer", "role": "rank", "rank": 0, "pid": 1})
    writer.write({"k": "error", "t": 2.5, "what": "größer\n\udcff"})
    writer.close()
    ledger = read_ledger(writer.path)
    assert ledger.process is not None
    assert not ledger.torn
    assert ledger.lines == 2
    assert [json.loads(line)["i"] for line in writer.path.read_text().splitlines()] == [1, 2]
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.write({"k": "end"})


FULL = """
import resource, sys
from pathlib import Path
from lockstep.inside.writer import LedgerWriter
writer = LedgerWriter(Path(sys.argv[1]), "trainer-rank-0-1")
writer.write({"k": "end", "t": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))
try:
    writer.write({"k": "error", "t": 2, "what": "x" * 50})
except OSError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write({"k": "end", "t": 3})
"""


def test_a_line_that_did_not_fit_does_not_swallow_the_next(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "bytes written" in done.stdout
    first, torn, last = (tmp_path / "trainer-rank-0-1.jsonl").read_text().splitlines()
    assert json.loads(first) == {"k": "end", "t": 1, "i": 1}
    assert torn.startswith('{"k":"error"')
    assert json.loads(last) == {"k": "end", "t": 3, "i": 3}


def test_a_complaint_that_cannot_be_written_is_dropped() -> None:
    code = "from lockstep.inside.writer import complain; complain('something'); raise SystemExit(7)"
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full).returncode == 7


EARLY = """
import os, sys
sys.modules["pathlib"] = None  # nothing that would cost a process that no run has started
from lockstep.stacks.swift.inside.entry_point import register
exec(sys.argv[1])
register()
print(sorted(name for name in sys.modules if name.startswith("lockstep")))
"""


def early(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = EARLY.replace('sys.modules["pathlib"] = None', "pass") if environment else EARLY
    return subprocess.run(
        [sys.executable, "-c", code, body], capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    "body",
    [
        "sys.argv = []",
        "del sys.argv",
        "sys.argv = None",
        "sys.argv = ['']",
        "sys.argv = [b'rlhf.py', 7]",
        "sys.argv = ['/x/rlhf.py']; sys.modules['lockstep.stacks.swift.compat'] = None",
    ],
)
def test_the_entry_point_lets_torch_be_imported_whatever_the_process_is(tmp_path: Path, body: str) -> None:
    done = early(body, LOCKSTEP_RUN_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert ("cannot watch this process" in done.stderr) == ("compat" in body)


def test_a_run_whose_hook_is_not_there_fails_loudly(tmp_path: Path) -> None:
    body = """
import lockstep.inside.hooks as hooks
def missing(*_):
    raise hooks.HookError("x is not there")
hooks.after_import = missing
sys.argv = ["rlhf.py"]
"""
    done = early(body, LOCKSTEP_RUN_DIR=str(tmp_path))
    assert done.returncode == 1
    assert "HookError: x is not there" in done.stderr


def test_without_a_run_the_entry_point_loads_nothing() -> None:
    done = early("os.environ.pop('LOCKSTEP_RUN_DIR', None)")
    assert done.stdout.strip() == str(
        [
            "lockstep",
            "lockstep.env",
            "lockstep.stacks",
            "lockstep.stacks.swift",
            "lockstep.stacks.swift.inside",
            "lockstep.stacks.swift.inside.entry_point",
        ]
    ), done.stderr
