"""Both engines of the rollout on one GPU, for a soak where there is no second.

NCCL refuses two ranks on one device, so the ranks keep step over gloo. Nothing of this is used elsewhere. It
has not been run: see docs/gpu.md.
"""

from __future__ import annotations

import os
from typing import Any

from lockstep.env import ONE_GPU
from lockstep.inside.hooks import replace, wrap
from lockstep.stacks.swift.compat import place

MEMORY = 0.3
"""Share of the GPU's memory that each engine may take."""


def rollout_environment(engines: int) -> dict[str, str]:
    """Ranks agree on the CPU, and vLLM's own communicator, made at the start, finds no library."""
    return {
        ONE_GPU: str(engines),
        "VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION": "1",
        "VLLM_NCCL_SO_PATH": "/nowhere/libnccl.so.2",
    }


def apply_rollout() -> None:
    """For the rollout's server and workers."""

    def get_infer_engine(original: Any, *args: Any, **kwargs: Any) -> Any:
        # vLLM 0.11.0 takes the GPU of this number (`vllm/v1/engine/utils.py`, `CoreEngineProcManager`).
        os.environ["VLLM_DP_RANK_LOCAL"] = "0"
        return original(*args, **kwargs)

    # ms-swift 3.10.3 refuses a rollout whose data parallel size exceeds the number of GPUs.
    replace(place("device count"), lambda: int(os.environ[ONE_GPU]))
    wrap(f"{place('rollout')}:SwiftRolloutDeploy.get_infer_engine", get_infer_engine)
