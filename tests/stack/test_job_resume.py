"""A job that ends, and a second one that goes on from its checkpoint. Both leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("swift")
pytest.importorskip("vllm")

from jobs import run, small_job, steps

from lockstep.verdict import Kind

pytestmark = [pytest.mark.lockstep_slow, pytest.mark.lockstep_stress]


def test_a_resumed_run_goes_on_from_its_checkpoint_and_stays_in_step(model: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    spec = small_job(model)
    outcome = run(spec, first)
    assert (outcome.verdict.kind, outcome.failure) == (Kind.IN_STEP, "")
    assert steps(first, "step") == steps(first, "save end") == steps(first, "eval end") == [1]
    assert not (first / "tmp").exists()

    resumed = spec.with_(resume_from=first / "output" / "checkpoint-1")
    outcome = run(resumed.with_(trainer={**resumed.trainer, "max_steps": 2}), second)
    assert (outcome.verdict.kind, outcome.failure) == (Kind.IN_STEP, "")
    assert steps(second, "train begin") == [1]
    assert (
        steps(second, "step")
        == steps(second, "save end")
        == steps(second, "eval end")
        == steps(second, "train end")
        == [2]
    )
    assert (second / "output" / "checkpoint-2").is_dir()
    assert not (second / "output" / "checkpoint-1").exists()
