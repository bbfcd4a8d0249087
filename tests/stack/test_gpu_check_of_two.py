"""The check of two ranks that hang, on gloo: ranks, probe, ledgers and verdict are the real ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lockstep.gpu_check import pair


def test_one_rank_stays_away_and_the_verdict_has_ranks_operation_and_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    said = pair.hang("gloo")
    assert said.startswith("stuck: group trainer.world (2 ranks): rank 0 waits in all_reduce #4 of 2 int32")
    assert "rank 1 issued 3" in said


def test_ranks_that_meet_again_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    monkeypatch.setattr(pair, "STUCK_S", 20.0)
    monkeypatch.setenv("LOCKSTEP_PAIR_STAYS", "1")
    with pytest.raises(AssertionError, match="the verdict stuck"):
        pair.hang("gloo")
