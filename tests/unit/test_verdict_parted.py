"""Ranks that part, go on for a while, and hang later: the verdict names the number at which they parted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_verdict_cause import File
from test_verdict_cause import verdict as judged

from lockstep.verdict import Kind, Verdict

ALL_GATHER, TWO, THREE = 0, 1, 2  # test_verdict_cause.OPS
WORLD = "trainer.world"


def rank(number: int, of: int = 2) -> File:
    """A trainer rank that has passed step 1 with 7 collectives."""
    file = File("trainer", "rank", number).group(WORLD, number, of)
    return file.passes(1.0, "train begin", 1, [ALL_GATHER, 3]).passes(9.0, "step", 1, [ALL_GATHER, 4])


def hangs(file: File, *runs: list[int], wait: bool = True, told: bool = True) -> File:
    """It has issued `runs` since and waits in the last of them; `told`: its pulses say so."""
    issued = 7 + sum(n for _, n in runs)
    op = {ALL_GATHER: ("all_gather", "BFloat16", None), TWO: ("all_reduce", "Float", 2)}
    name, dtype, n = op.get(runs[-1][0] if runs else TWO, ("all_reduce", "Float", 3))
    w = {"g": 0, "seq": issued, "op": name, "dtype": dtype, "n": n, "at": "x.py:7"}
    for t in range(10, 30, 2):
        rest: dict[str, Any] = {"w": w} if wait else {}
        if told and t == 12 and runs:
            rest["s"] = {"0": [issued, list(runs)]}
        file.pulse(float(t), issued, issued - wait, at=["x.py:7 step"], **rest)
    return file


def both_ways(tmp_path: Path, *files: File) -> list[Verdict]:
    """While the job runs, and from the files alone."""
    (tmp_path / "later").mkdir()
    return [judged(tmp_path, *files, now=29.0), judged(tmp_path / "later", *files)]


def test_the_number_at_which_they_parted_is_named_and_not_the_one_they_wait_in(tmp_path: Path) -> None:
    """Gloo let rank 0 through #8, though rank 1 had come with another size."""
    files = hangs(rank(0), [TWO, 1], [ALL_GATHER, 1]), hangs(rank(1), [THREE, 1])
    for found in both_ways(tmp_path, *files):
        assert found.kind is Kind.STUCK
        assert found.sentence == (
            "group trainer.world (2 ranks) differs from #8 on, after step 1: "
            "rank 0 issued all_reduce #8 of 2 float32; rank 1 issued all_reduce #8 of 3 float32; "
            "now rank 0 waits in all_gather #9 of bfloat16, issued at x.py:7; "
            "rank 1 issued 8 and waits in all_reduce #8 of 3 float32"
        )
        assert (found.seq, found.waiting, found.absent) == (8, (0, 1), ())
        assert [view.operation for view in found.ranks] == [
            "all_reduce #8 of 2 float32",
            "all_reduce #8 of 3 float32",
        ]
        assert [view.waits_elsewhere for view in found.ranks] == ["in all_gather #9 of bfloat16", None]
        assert found.cause == "rank-dependent-control-flow"
        assert found.evidence == (
            "trainer rank 0 issued all_reduce #8 of 2 float32",
            "trainer rank 1 issued all_reduce #8 of 3 float32",
        )


def test_without_streams_it_is_the_number_that_they_wait_in(tmp_path: Path) -> None:
    files = hangs(rank(0), [TWO, 1], [ALL_GATHER, 1], told=False), hangs(rank(1), [THREE, 1], told=False)
    for found in both_ways(tmp_path, *files):
        assert (found.kind, found.seq, found.absent) == (Kind.STUCK, 9, (1,))
        assert found.sentence.startswith("group trainer.world (2 ranks): rank 0 waits in all_gather #9")


def test_equal_streams_leave_the_number_that_they_wait_in(tmp_path: Path) -> None:
    files = hangs(rank(0), [TWO, 1], [ALL_GATHER, 1]), hangs(rank(1), [TWO, 1], wait=False)
    for found in both_ways(tmp_path, *files):
        assert (found.kind, found.seq, found.waiting, found.absent) == (Kind.STUCK, 9, (0,), (1,))
        assert "differs" not in found.sentence


def test_ranks_that_wait_where_they_parted_are_told_once(tmp_path: Path) -> None:
    files = hangs(rank(0), [ALL_GATHER, 1]), hangs(rank(1), [TWO, 1])
    for found in both_ways(tmp_path, *files):
        assert found.sentence == (
            "group trainer.world (2 ranks): rank 0 waits in all_gather #8 of bfloat16, issued at x.py:7; "
            "rank 1 waits in all_reduce #8 of 2 float32, issued at x.py:7"
        )
        assert (found.seq, found.absent) == (8, ())


def test_of_three_ranks_the_odd_one_is_named(tmp_path: Path) -> None:
    files = [hangs(rank(r, 3), [THREE if r == 1 else TWO, 1], [ALL_GATHER, 1], wait=r != 1) for r in range(3)]
    files[2] = hangs(rank(2, 3), [TWO, 1], wait=False)
    for found in both_ways(tmp_path, *files):
        assert (found.seq, found.odd, found.waiting) == (8, (1,), (0,))
        assert [view.state for view in found.ranks] == ["waiting", "differs", "done"]
        told = "ranks 0, 2 issued all_reduce #8 of 2 float32; rank 1 issued all_reduce #8 of 3 float32"
        assert told in found.sentence


@pytest.mark.parametrize("wait", [True, False])
def test_a_job_that_moves_is_not_judged_by_its_pulses(tmp_path: Path, wait: bool) -> None:
    """Until it has been still for the settling time; a boundary may yet bring the proof."""
    a, b = hangs(rank(0), [TWO, 1], [ALL_GATHER, 1]), hangs(rank(1), [THREE, 1], wait=wait)
    b.pulse(29.0, 9)
    assert judged(tmp_path, a, b, now=29.0).kind is Kind.INCOMPLETE
