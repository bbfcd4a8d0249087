"""The arms on CUDA and NCCL, and SIGSTOP. Needs 4 GPUs and the pinned stack (`nox -s gpu_stress`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.devices import DeviceError, find_gpus
from lockstep.experiments.stress.scenarios import check
from lockstep.run.supervise import Limits, run_job
from lockstep.stacks.base import Arm, Choice, StackError
from lockstep.stacks.swift.arms import gpu_arms
from lockstep.stacks.swift.gpu import gpu_job, gpu_layout, has_flash_attn
from lockstep.stacks.swift.pins import check_stack
from lockstep.stacks.swift.spec import Layout

pytestmark = [pytest.mark.lockstep_gpu, pytest.mark.lockstep_stress, pytest.mark.lockstep_slow]

ROOT = Path(__file__).parents[2]
NAMES = ["control", "without the fix", "with the fix", "stopped, without the fix", "stopped, with the fix"]


@pytest.fixture(scope="module")
def arms() -> dict[str, Arm]:
    try:
        layout: Layout = gpu_layout(find_gpus(), Choice())
        check_stack("cuda")
    except (DeviceError, StackError) as error:
        pytest.skip(str(error))
    from lockstep.fixtures.checkpoint import ensure_checkpoint
    from lockstep.fixtures.model import PUBLISHED

    model = ensure_checkpoint(ROOT / ".lockstep" / "models", PUBLISHED)
    data = ROOT / "datasets" / "shapes"
    job = gpu_job("job", model=model, datasets=data, layout=layout, flash_attn=has_flash_attn())
    job = job.with_(cache=ROOT / ".lockstep" / "cache")
    return {arm.spec.name: arm for arm in gpu_arms(job)}


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_ends_as_it_must(arms: dict[str, Arm], name: str, tmp_path: Path) -> None:
    assert list(arms) == NAMES
    arm, run_dir = arms[name], tmp_path / "run"
    watch = arm.outside(run_dir) if arm.outside else None
    if watch is None:
        outcome = run_job(arm.spec, run_dir, Limits(), lambda *_: None)
    else:
        with watch:
            outcome = run_job(arm.spec, run_dir, Limits(), lambda *_: None)
        assert watch.did
    assert check(arm, outcome) == ""
    if arm.group:
        assert outcome.verdict.group is not None
        assert outcome.verdict.group.backend == "nccl"
        assert outcome.seconds_to_verdict < 30
        assert list((run_dir / "evidence").glob("*.flight.json"))
        assert "no report" not in (run_dir / "evidence" / "rollout.ras.txt").read_text()
