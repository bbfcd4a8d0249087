"""Time and memory for ledgers that somebody made to hurt: linear, or a limit that is named."""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from lockstep.record import read_directory
from lockstep.record.fold import GROUPS_KEPT, LINE_BYTES, Fold
from lockstep.report import to_json
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind, Verdict

GROWTH = 8
Lines = Callable[[int, int], Iterable[str]]


def group(g: int, rank: int, ranks: int = 2) -> str:
    return json.dumps(
        {"k": "group", "t": 1.0, "g": g, "name": f"g{g}", "ranks": list(range(ranks)), "rank": rank}
    )


def step(n: int, g: int, count: int, name: str = "step") -> str:
    return json.dumps({"k": "boundary", "t": float(n), "b": name, "n": n, "c": {str(g): [count, "ab", {}]}})


def job(directory: Path, lines: Lines, n: int) -> Path:
    for rank in (0, 1):
        process = {
            "k": "process",
            "v": 1,
            "t": 1.0,
            "side": "trainer",
            "role": "rank",
            "rank": rank,
            "pid": 1,
        }
        text = "\n".join([json.dumps(process), *lines(n, rank), ""])
        (directory / f"trainer-rank-{rank}-1.jsonl").write_text(text)
    return directory


HARD: dict[str, Lines] = {
    "groups": lambda n, r: (group(g, r) for g in range(n)),
    "groups and boundaries": lambda n, r: [
        *(group(g, r) for g in range(n)), *(step(i, i % n, i) for i in range(1, n))
    ],
    "groups that all differ": lambda n, r: [
        *(group(g, r) for g in range(n)), *(step(i + 1, i, i + r) for i in range(n))
    ],
    "boundaries after which one rank is gone": lambda n, r: [
        *(group(g, r) for g in range(n)), *(step(i + 1, i, 1 + r) for i in range(n if r else 1))
    ],
    "a large group": lambda n, r: [group(0, r, 40 * n), step(1, 0, 1 + r)],
    "lost records of every group": lambda n, r: [
        *(group(g, r) for g in range(n)), *(['{"k":"lost","t":2}'] * n)
    ],
    "names of boundaries": lambda n, r: (step(1, 0, 1, f"x{i}") for i in range(n)),
    "unreadable lines": lambda n, r: ["{"] * (4 * n),
    "unknown kinds": lambda n, r: (f'{{"k":"x{i}"}}' for i in range(n)),
    "groups that are not declared": lambda n, r: [
        json.dumps({"k": "pulse", "t": 2, "c": {str(g): [1, 1] for g in range(4 * n)}})
    ],
    "a deep line": lambda n, r: ["[" * (40 * n)],
    "a long stack": lambda n, r: [json.dumps({"k": "pulse", "t": 2, "at": ["x.py:1 f"] * (10 * n)})],
    "clocks that are set at every line": lambda n, r: (
        f'{{"k":"pulse","t":{100 * (i % 2)},"m":{i}}}' for i in range(n)
    ),
    "numbers out of order": lambda n, r: (f'{{"k":"pulse","t":2,"i":{n - i}}}' for i in range(n)),
    "a long stream": lambda n, r: [
        group(0, r), '{"k":"op","id":0,"op":"a"}', '{"k":"op","id":1,"op":"b"}',
        json.dumps({"k": "boundary", "t": 2, "b": "step", "n": 1, "c": {"0": [10 * n, str(r), {}]},
                    "s": {"0": [[0, 1], [1, 1]] * (5 * n)}}),
    ],
    "many marks": lambda n, r: [group(0, r), *(step(i, 0, i + r * (i > n // 2)) for i in range(1, n))],
}  # fmt: skip


def cost(lines: Lines, n: int) -> tuple[float, int, int]:
    """CPU seconds, peak bytes and characters of JSON for a job of size `n`."""
    with tempfile.TemporaryDirectory() as folder:
        directory = job(Path(folder), lines, n)
        begun = time.process_time()
        text = json.dumps(to_json(judge(read_directory(directory))))
        spent = time.process_time() - begun
        tracemalloc.start()
        judge(read_directory(directory))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return spent, peak, len(text)


@pytest.mark.parametrize("what", HARD)
def test_time_memory_and_output_grow_no_faster_than_the_input(what: str) -> None:
    small = cost(HARD[what], 300)
    large = cost(HARD[what], 300 * GROWTH)
    # Squared it would be 64 times as much.
    assert large[0] < 3 * GROWTH * max(small[0], 0.01), "seconds"
    assert large[1] < 2 * GROWTH * max(small[1], 300_000), "bytes"
    assert large[2] < 2 * GROWTH * max(small[2], 10_000), "characters"


def test_boundaries_in_different_orders_are_compared_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.verdict.compare.MOST_LOOKED_AT", 100)
    lines: Lines = lambda n, r: [*(group(g, r) for g in range(9)), "{", *(step(i, 0, i) for i in range(1, n))]  # noqa: E731
    found = judge(read_directory(job(tmp_path, lines, 30)))
    assert found.kind is Kind.INCOMPLETE
    assert "7 groups from g2 on: not compared at boundaries" in " ".join(map(str, found.problems))


# -- limits


def verdict(tmp_path: Path, lines: Lines, n: int) -> Verdict:
    return judge(read_directory(job(tmp_path, lines, n)))


@pytest.mark.parametrize("ends", [True, False])
def test_a_line_that_is_too_long_is_not_kept_and_is_told_with_its_length(ends: bool) -> None:
    fold = Fold("x.jsonl")
    fold.feed(b'{"k":"process","v":1,"t":1,"side":"trainer","role":"rank","rank":0,"pid":1}\n')
    tracemalloc.start()
    for _ in range(40):
        fold.feed(b"x" * (1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * LINE_BYTES
    if ends:
        fold.feed(b'\n{"k":"end","t":2}\n')
    text = " ".join(map(str, fold.ledger.problems))
    assert (f"x.jsonl:2: a line of {40 << 20} bytes: expected at most {LINE_BYTES}" in text) == ends
    assert ("x.jsonl:2: torn last line" in text) != ends
    assert (fold.ledger.ended is not None) == ends


def test_a_line_in_small_portions_is_read() -> None:
    fold = Fold("x.jsonl")
    for byte in b'{"k":"process","v":1,"t":1,"side":"trainer","role":"rank","rank":0,"pid":1}\n{"k"':
        fold.feed(bytes([byte]))
    assert fold.ledger.label == "trainer rank 0"
    assert [p.torn for p in fold.ledger.problems] == [True]


def test_groups_beyond_a_limit_are_left_out_and_told(tmp_path: Path) -> None:
    lines: Lines = lambda n, r: (group(g, r) for g in range(n))  # noqa: E731
    found = verdict(tmp_path, lines, GROUPS_KEPT + 5)
    assert found.kind is Kind.INCOMPLETE
    limit = f"expected at most {GROUPS_KEPT} groups: the rest is left out"
    assert [str(p).partition(": ")[2] for p in found.problems] == [f"group g{GROUPS_KEPT}: {limit}"] * 2
    assert f"trainer-rank-0-1.jsonl:{GROUPS_KEPT + 2}: " in found.sentence


def test_of_a_large_group_the_ranks_without_a_ledger_are_counted(tmp_path: Path) -> None:
    found = verdict(tmp_path, HARD["a large group"], 2500)
    assert found.kind is Kind.DIVERGED
    assert found.sentence.startswith("group g0 (100000 ranks) differs")
    assert found.sentence.endswith("; 98974 ranks more have no ledger")
    assert found.group is not None
    assert (len(found.group.ranks), found.group.left_out) == (1024, 98976)
    assert (len(found.ranks), found.left_out) == (1026, 98974)
    assert "no ledger of ranks 2-99999 of 100000" in str(found.problems[0])
    assert len(json.dumps(to_json(found))) < 1_000_000


def test_a_group_of_too_many_ranks_is_told(tmp_path: Path) -> None:
    found = verdict(tmp_path, HARD["a large group"], 25_001)
    assert "trainer-rank-0-1.jsonl:2: expected a group line" in found.sentence
    assert "length <= 1000000" in found.sentence
