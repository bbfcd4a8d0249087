# ruff: noqa: E501 (lines of logs)
"""Many ranks, many files, and content made to be slow: linear, or a limit that is named.

Times are compared within one run, as this machine may be busy: twice the input may take at most about twice as long.
"""

from __future__ import annotations

import gc
import io
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.diagnose import Diagnosis, conclude, diagnose
from lockstep.diagnose import line_patterns as marks
from lockstep.diagnose.render import render, to_json
from lockstep.diagnose.scan import scan

LOGS = Path(__file__).parent.parent / "data" / "logs"
SEEDS = [
    line for path in sorted(LOGS.glob("*.log")) for line in path.read_bytes().splitlines() if len(line) > 20
]


def whole_way(raw: bytes) -> Diagnosis:
    result = scan(io.BytesIO(raw), "x")
    found = conclude(result.events, [])
    render(found)
    to_json(found)
    return found


def seconds(work: Callable[[], object]) -> float:
    """The least of three runs."""
    best = float("inf")
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def job(ranks: int, lines: int, *, labels: bool = True, size: int = 0) -> bytes:
    """The log of a job whose ranks all wait. `size`: ranks in a group; 0 for one group of all."""
    rows = []
    for rank in range(ranks):
        group, place = divmod(rank, size) if size else (0, rank)
        label = f"[PG ID {2 * bool(size)} PG GUID {group} Rank {place}]"
        head = f"[rank{rank}]:[E1206 21:12:01.850621435 ProcessGroupNCCL.cpp:"
        rows.append(
            f"{head}685] [Rank {place}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
        )
        if labels:
            rows.append(
                f"{head}2252] {label}  failure detected by watchdog at work sequence id: 7753 PG status: last enqueued work: 7753, last completed work: 7752"
            )
        rows += [
            f"{head}1806] {label} Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 7753, last completed NCCL work: 7752.This is"
        ] * (lines - 2)
    return "\n".join(rows).encode()


@pytest.mark.parametrize(
    ("labels", "size"), [(True, 0), (False, 0), (True, 8)], ids=["one", "unlabelled", "groups of 8"]
)
def test_time_grows_no_faster_than_ranks(labels: bool, size: int) -> None:
    def times(ranks: int) -> float:
        raw = job(ranks, 2, labels=labels, size=size)
        return seconds(lambda: whole_way(raw))

    assert times(2048) < 8 * times(512)  # quadratic: 16


def test_four_thousand_ranks_with_twenty_lines_each() -> None:
    """5 s are promised on an idle machine; this is for quadratic time, which took minutes."""
    raw = job(4096, 20)
    start = time.process_time()
    found = whole_way(raw)
    assert time.process_time() - start < 20
    assert found.group is not None
    assert len(found.group.waiting) == 4096
    assert found.cause == "unknown"


def test_no_rank_is_lost_to_a_limit_because_of_what_others_repeat() -> None:
    result = scan(io.BytesIO(job(3000, 12)), "x")
    assert result.problems == []


def test_time_grows_no_faster_than_files(tmp_path: Path) -> None:
    logs = [path.read_bytes() for path in sorted(LOGS.glob("*.log"))]
    folders = []
    for count in (100, 400):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:04}.log").write_bytes(logs[number % len(logs)])
        folders.append(str(folder))
    few, many = (seconds(lambda folder=folder: diagnose([folder])) for folder in folders)  # type: ignore[misc]
    assert many < 9 * few  # quadratic: 16


_HEALTHY = (
    b"{'loss': 0.1234, 'grad_norm': 0.51234, 'learning_rate': 1.9e-06, 'reward': 0.61, 'epoch': 0.12}\n"
)
_TOKENS = [
    *marks.TRIGGERS,
    *(row[1].encode() for row in (*marks._ROWS, *marks._CONTEXT)),
    *(
        b"[",
        b"(",
        b"%|",
        b"1%|",
        b"[rank0]:",
        b"[PG ID 0 PG GUID 0 Rank 0]",
        b"WorkNCCL(SeqNum=1, OpType=A",
        b"1, ",
        b"\r",
        b"\n",
        b"> ",
    ),
]


def slow_ones(seed: int, count: int) -> list[bytes]:
    """Content made of a piece that is repeated: the beginnings of messages, their words, whole ones."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        line = rng.choice(SEEDS)
        unit = rng.choice(
            (
                rng.choice(_TOKENS),
                b"".join(rng.choice(_TOKENS) for _ in range(3)),
                line[: rng.randrange(5, len(line))],
                line[rng.randrange(len(line)) :][:80],
                line,
            )
        )
        found.append((unit or b"x") + rng.choice((b"", b"", b"\n", b"\r", b" ")))
    return found


_KNOWN = [
    b"Error\n",
    b"WorkNCCL(SeqNum=1, OpType=ALLREDUCE, ",
    b"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
    b"[PG ID 0 PG GUID 0 Rank 0] Received a dump signal due to a collective timeout ",
    b"Traceback (most recent call last):\n",
    b"NCCL WARN x from y remote z <1> failed ",
    b"RuntimeError: HCCL error ",
    b"requests.exceptions.E: ",
    b"Ranks 1, 2, 3, ",
    b"1%|" + b"a" * 200,
    b"Map: 1%|a| ",
    b"training training ",
]


@pytest.mark.parametrize("seed", range(3))
def test_no_content_takes_much_longer_than_a_log_of_failures(seed: int) -> None:
    """What is promised is a second for a megabyte. The measure here is a log in which every rank's watchdog speaks."""
    size = 1 << 17
    ordinary = (job(400, 4) * 3)[:size]
    measure = seconds(lambda: whole_way(ordinary))
    for unit in [*slow_ones(seed, 25), *(_KNOWN if seed == 0 else [])]:
        raw = (unit * (size // len(unit) + 1))[:size]
        start = time.process_time()
        whole_way(raw)
        took = time.process_time() - start
        if took > 15 * measure:  # once more: something else may have had the core
            took = min(took, seconds(lambda raw=raw: whole_way(raw)))  # type: ignore[misc]
        assert took < 15 * measure, (unit[:200], took, measure)


@pytest.mark.parametrize("unit", _KNOWN, ids=range(len(_KNOWN)))
def test_a_line_of_one_repeated_beginning_takes_time_in_proportion(unit: bytes) -> None:
    small, large = ((unit * (size // len(unit) + 1))[:size] for size in (1 << 17, 1 << 19))
    whole_way(small)
    assert seconds(lambda: whole_way(large)) < 8 * seconds(lambda: whole_way(small)) + 0.05  # quadratic: 16


def test_too_many_short_lines_are_left_out_and_named() -> None:
    result = scan(io.BytesIO(b"Error\n" * 200_000), "x")
    assert any("were not read" in problem for problem in result.problems)
    assert scan(io.BytesIO(_HEALTHY * 20_000 + SEEDS[0] + b"\n"), "x").problems == []
