from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ledgers import AR, Job, whole_job

from lockstep.record import LedgerError, LedgerTail, Operation, read_directory, read_ledger

PROCESS = {
    "k": "process",
    "v": 1,
    "t": 1.0,
    "side": "trainer",
    "role": "rank",
    "rank": 0,
    "pid": 7,
    "host": "h",
}
GROUP = {
    "k": "group",
    "t": 1.0,
    "g": 0,
    "name": "trainer.world",
    "backend": "gloo",
    "ranks": [0, 1],
    "rank": 0,
}
OP = {"k": "op", "id": 3, "op": "all_reduce", "dtype": "Int", "n": 2}
STEP = {"k": "boundary", "t": 2.0, "b": "step", "n": 1, "step": 1, "c": {"0": [5, "ab", {"all_reduce": 5}]},
        "s": {"0": [[3, 5]]}}  # fmt: skip
PULSE = {"k": "pulse", "t": 3.0, "c": {"0": [6, 5]}, "beat": 1, "cpu": 0.5, "park": "futex",
         "w": {"g": 0, "seq": 6, "op": "all_reduce", "dtype": "Int", "n": 2, "at": "x.py:1"},
         "at": ["x.py:1 f"]}  # fmt: skip
END = {"k": "end", "t": 4.0}


def put(path: Path, *lines: dict[str, Any] | bytes) -> Path:
    path.write_bytes(b"".join(x if isinstance(x, bytes) else json.dumps(x).encode() + b"\n" for x in lines))
    return path


def problems(path: Path) -> list[tuple[int | None, str]]:
    return [(p.line, p.what) for p in read_ledger(path).problems]


def test_a_whole_ledger(tmp_path: Path) -> None:
    ledger = read_ledger(put(tmp_path / "a.jsonl", PROCESS, GROUP, OP, STEP, PULSE, END))
    assert ledger.problems == []
    assert ledger.process is not None
    assert ledger.label == "trainer rank 0"
    assert ledger.groups[0].ranks == (0, 1)
    assert ledger.ops[3] == Operation("all_reduce", "Int", 2)
    assert [str(b) for b in ledger.boundaries] == ["step 1"]
    mark = ledger.marks[0][0]
    assert (mark.count, mark.digest, list(mark.stream or [])) == (5, "ab", [3, 5])
    assert (ledger.issued[0], ledger.completed[0], ledger.issued_since[0]) == (6, 5, 3.0)
    waiting = ledger.waiting_at(9.0)
    assert waiting is not None
    assert waiting.seq == 6
    assert (ledger.ended, ledger.last_t) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("lines", "line", "what"),
    [
        ([PROCESS, b'{"k":"pul'], 2, "torn last line: expected a newline"),
        ([PROCESS, b"{nonsense}\n", END], 2, "expected one JSON object"),
        ([PROCESS, b"\xff\xfe\n", END], 2, "expected one JSON object"),
        ([PROCESS, b"[" * 100_000 + b"\n"], 2, "expected one JSON object"),
        ([PROCESS, {"t": 1.0}], 2, 'expected a string under the key "k"'),
        ([PROCESS, {"k": "pulse", "t": "noon"}], 2, "expected a pulse line (Expected `float`, got `str`"),
        ([PROCESS, {"k": "pulse", "t": 10**300}], 2, "expected a pulse line"),
        ([GROUP, PROCESS], 1, "expected a process line first"),
        ([PROCESS | {"v": 2}, {"k": "pulse", "t": "in another way"}], 1, "version 2: expected 1"),
        ([PROCESS, PROCESS], 2, "a second process line"),
        ([b""], None, "empty file: expected a process line"),
        ([PROCESS, STEP], 2, "group number 0 is used here: expected a group line before"),
        ([PROCESS, GROUP, STEP | {"n": 3}], 3, "boundary step 3: expected step 1"),
        ([PROCESS, GROUP, OP, STEP | {"s": {"0": [[3, 4]]}}], 4, "4 collectives in the stream: expected 5"),
        ([PROCESS, GROUP | {"rank": 2}], 2, "rank 2 of 2: expected less"),
        (
            [PROCESS, GROUP, {"k": "lost", "t": 2.0, "g": 0, "records": 9}],
            3,
            "9 records of group trainer.world",
        ),
        ([PROCESS, GROUP, {"k": "lost", "t": 2.0, "g": None}], 3, "some records were overwritten"),
        ([PROCESS, {"k": "error", "t": 2.0, "what": "no recorder"}], 2, "the probe failed: no recorder"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, lines: list[Any], line: int | None, what: str
) -> None:
    found = problems(put(tmp_path / "a.jsonl", *lines))
    assert len(found) >= 1
    assert found[0][0] == line
    assert what in found[0][1]


def numbered(*lines: dict[str, Any] | bytes) -> list[Any]:
    return [x if isinstance(x, bytes) else {**x, "i": i} for i, x in enumerate(lines, 1)]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (numbered(PROCESS, GROUP, OP, STEP, PULSE, END), None),
        (numbered(PROCESS, GROUP, {"k": "weather"}, OP, b"{torn\n", END), None),
        (numbered(PROCESS, GROUP, OP, STEP, PULSE, END)[1:], 1),
        (numbered(PROCESS, GROUP, OP, STEP, PULSE, END)[:2] + numbered(PROCESS, GROUP, OP, STEP)[3:], 3),
        ([*numbered(PROCESS, GROUP, OP), {"k": "weather", "i": 5}], 4),
        ([*numbered(PROCESS, GROUP, OP), STEP], 4),
        ([*numbered(PROCESS, GROUP), b'{"k":"op","i":3}{"k":"op","i":4}\n', END | {"i": 5}], 4),
    ],
)
def test_lines_that_are_missing_are_told_with_the_line_before_which_they_are(
    tmp_path: Path, lines: list[Any], line: int | None
) -> None:
    disorder = read_ledger(put(tmp_path / "a.jsonl", *lines)).disorder
    assert (disorder and disorder.line) == line
    if disorder:
        assert "lines are missing or not in their order" in disorder.what


def test_of_many_problems_the_first_are_told(tmp_path: Path) -> None:
    found = problems(put(tmp_path / "a.jsonl", PROCESS, *[b"{\n"] * 5000))
    assert len(found) == 1001
    assert found[-1][1].endswith("what else is wrong from here on is left out")


def test_a_count_that_goes_back_is_told(tmp_path: Path) -> None:
    later = STEP | {"n": 2, "c": {"0": [4, "cd", {}]}, "s": {}}
    assert problems(put(tmp_path / "a.jsonl", PROCESS, GROUP, OP, STEP, later)) == [
        (5, "group trainer.world: count 4: expected at least 5")
    ]


def test_unknown_kinds_and_keys_are_skipped_and_counted(tmp_path: Path) -> None:
    ledger = read_ledger(
        put(
            tmp_path / "a.jsonl",
            PROCESS | {"new": 1},
            {"k": "weather"},
            {"k": "weather"},
            PULSE | {"c": {}, "y": 0},
        )
    )
    assert ledger.problems == []
    assert ledger.unknown == {"process.new": 1, "weather": 2, "pulse.y": 1}


def test_lost_records_spoil_digests_and_one_stream_but_no_counts(tmp_path: Path) -> None:
    lost = {"k": "lost", "t": 2.1, "g": 0, "records": 3}
    second = STEP | {"n": 2, "c": {"0": [9, "cd", {}]}, "s": {"0": [[3, 1]]}}
    third = STEP | {"n": 3, "c": {"0": [11, "ef", {}]}, "s": {"0": [[3, 2]]}}
    ledger = read_ledger(put(tmp_path / "a.jsonl", PROCESS, GROUP, OP, STEP, lost, second, third))
    assert [(m.count, m.digest, m.stream and list(m.stream)) for m in ledger.marks[0]] == [
        (5, "ab", [3, 5]),
        (9, None, None),
        (11, None, [3, 2]),
    ]


TELLS = PULSE | {"s": {"0": [7, [[3, 2]]]}}


def test_a_pulse_tells_what_was_issued_since_the_last_boundary(tmp_path: Path) -> None:
    ledger = read_ledger(put(tmp_path / "a.jsonl", PROCESS, GROUP, OP, STEP, TELLS, PULSE | {"t": 4.0}))
    assert ledger.problems == []
    tail = ledger.tails[0]
    assert (tail.index, tail.count, tail.digest, list(tail.stream or [])) == (1, 7, None, [3, 2])
    assert ledger.issued[0] == 6  # counts are those of `c`


def test_a_boundary_takes_the_place_of_what_a_pulse_told(tmp_path: Path) -> None:
    second = STEP | {"n": 2, "c": {"0": [8, "cd", {}]}, "s": {"0": [[3, 3]]}}
    ledger = read_ledger(put(tmp_path / "a.jsonl", PROCESS, GROUP, OP, STEP, TELLS, second))
    assert (ledger.problems, ledger.tails) == ([], {})
    other = STEP | {"n": 2, "c": {}, "s": {}}
    assert read_ledger(put(tmp_path / "b.jsonl", PROCESS, GROUP, OP, STEP, TELLS, other)).tails


def test_a_pulse_that_tells_too_much_is_told(tmp_path: Path) -> None:
    wrong = TELLS | {"s": {"0": [7, [[3, 3]]]}}
    path = put(tmp_path / "a.jsonl", PROCESS, GROUP, OP, STEP, wrong)
    what = "group trainer.world: 3 collectives in a pulse's stream: expected 2, as counted"
    assert problems(path) == [(5, what)]
    assert read_ledger(path).tails == {}


@pytest.mark.parametrize("between", [b"{torn\n", {"k": "lost", "t": 2.1, "g": 0, "records": 3}])
def test_after_a_hole_a_pulse_tells_nothing(tmp_path: Path, between: Any) -> None:
    ledger = read_ledger(put(tmp_path / "a.jsonl", PROCESS, GROUP, OP, STEP, between, TELLS))
    assert len(ledger.problems) == 1
    assert ledger.tails == {}


def test_of_pulses_only_the_last_is_kept(tmp_path: Path) -> None:
    pulses = [
        PULSE | {"t": 3.0 + i, "w": None, "at": [f"x.py:{i % 7} f"], "cpu": i * 0.1} for i in range(2000)
    ]
    ledger = read_ledger(put(tmp_path / "a.jsonl", PROCESS, GROUP, *pulses))
    assert ledger.pulse is not None
    assert ledger.pulse.t == 2002.0
    assert len(ledger.movement.busy) == 1  # one long time of running
    gaps = [p | {"at": [f"x.py:{i // 3} f"]} for i, p in enumerate(pulses)]
    assert len(read_ledger(put(tmp_path / "b.jsonl", PROCESS, GROUP, *gaps)).movement.busy) <= 8


def test_unreadable_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"gone\.jsonl: cannot read the ledger: No such file"):
        read_ledger(tmp_path / "gone.jsonl")
    with pytest.raises(LedgerError, match="nowhere: no such directory"):
        read_directory(tmp_path / "nowhere")
    (tmp_path / "logging.jsonl").write_text("{}\n")  # what else a trainer leaves behind is no ledger
    with pytest.raises(LedgerError, match=r"no ledger here: expected files named trainer-\*\.jsonl"):
        read_directory(tmp_path)
    with pytest.raises(LedgerError, match=r"logging\.jsonl: not a directory"):
        read_directory(tmp_path / "logging.jsonl")


def test_directory_or_its_ledgers_folder(tmp_path: Path) -> None:
    job = Job(whole_job(1))
    job.write(tmp_path)
    assert len(read_directory(tmp_path)) == len(read_directory(tmp_path / "ledgers")) == 4


def test_the_tail_reads_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    job = Job(whole_job(2))
    tail = LedgerTail(tmp_path / "job")
    assert tail.refresh() == 0
    assert tail.ledgers == []
    folder = tmp_path / "job" / "ledgers"
    folder.mkdir(parents=True)
    chance = random.Random(1)
    left = {name: b"".join(line for _, line in lines) for name, lines in job.files.items()}
    while any(left.values()):
        added = 0
        for name in chance.sample(sorted(left), 2):
            portion = left[name][: chance.randrange(2000)]
            left[name] = left[name][len(portion) :]
            if portion:
                with (folder / name).open("ab") as file:
                    added += file.write(portion)
        assert tail.refresh() == added
    assert tail.refresh() == 0
    assert sorted(tail.ledgers, key=lambda x: x.path) == read_directory(tmp_path / "job")


def test_streams_hold_what_was_issued(tmp_path: Path) -> None:
    trainer = next(
        x for x in read_directory(Job(whole_job(1)).write(tmp_path)) if x.label == "trainer rank 0"
    )
    g = next(g for g, group in trainer.groups.items() if group.name == "trainer.zero")
    stream = trainer.marks[g][0].stream
    assert stream is not None
    operations = [(trainer.ops[op], n) for op, n in zip(stream[::2], stream[1::2], strict=True)]
    assert [(o.op, n) for o, n in operations] == [("reduce_scatter", 1), ("all_reduce", 2), ("all_gather", 1)]
    assert operations[1][0] == Operation(*AR)


def test_reading_needs_neither_torch_nor_rich() -> None:
    code = (
        "import sys, lockstep.verdict, lockstep.record; print({'torch', 'rich', 'typer'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
