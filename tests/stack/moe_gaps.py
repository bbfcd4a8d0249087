"""What vLLM's CPU builds lack for a mixture of experts with data parallelism, put in from outside.

A worker extension: every engine core imports it before it makes its model. Nothing here touches what open
wave changes, or when a step begins or ends. `MOE_GAPS=left` leaves the gaps, to see what becomes of them.
"""

from __future__ import annotations

import os
from typing import Any

from wave_rank import Sync

__all__ = ["Sync"]


def fill() -> None:
    import vllm
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    if vllm.__version__.startswith("0.11."):
        _experts()
    if vllm.__version__.startswith("0.14."):
        _activation()
    if "dispatch" not in vars(CpuCommunicator):
        _all_to_all(CpuCommunicator)
    elif "all_gatherv" not in vars(CpuCommunicator):
        CpuCommunicator.all_gatherv, CpuCommunicator.reduce_scatterv = _all_gatherv, _reduce_scatterv


def _experts() -> None:
    """0.11: on x86 the experts need Intel's extension for PyTorch. What they are on ARM runs anywhere."""
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    cpu_fused_moe.IPEXFusedMOE = cpu_fused_moe.CPUFusedMOE


def _activation() -> None:
    """0.14: without oneDNN the experts make their activation in the first forward pass, where vLLM has no
    configuration set ("Current vLLM config is not set")."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.fused_moe import cpu_fused_moe

    with set_current_vllm_config(VllmConfig()):
        cpu_fused_moe._CPU_MOE_ACT["silu"]


def _all_to_all(communicator: Any) -> None:
    """To 0.14: the CPU communicator passes a layer's tokens to no other rank, so that each rank answers by
    its own part of every expert alone. vLLM's naive manager, which 0.15 then gave it: broadcasts, and an
    all-reduce."""
    from vllm.distributed.device_communicators.all2all import NaiveAll2AllManager

    made = communicator.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if self.use_all2all:
            self.all2all_manager = NaiveAll2AllManager(self.cpu_group)

    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.all2all_manager.dispatch(*args, **kwargs)

    def combine(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.all2all_manager.combine(*args, **kwargs)

    communicator.__init__, communicator.dispatch, communicator.combine = init, dispatch, combine


def _all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """From 0.20: the manager that the CPU communicator has gathers parts of different sizes, which the
    communicator itself does not (`NotImplementedError`). Of each rank along dimension 0."""
    import torch
    import torch.distributed as dist

    if isinstance(input_, list):
        return [_all_gatherv(self, part, dim, sizes) for part in input_]
    assert dim == 0
    parts = []
    for rank, size in zip(self.ranks, sizes or [input_.shape[0]] * self.world_size, strict=True):
        part = input_.contiguous() if rank == self.global_rank else input_.new_empty(size, *input_.shape[1:])
        dist.broadcast(part, src=rank, group=self.device_group)
        parts.append(part)
    return torch.cat(parts)


def _reduce_scatterv(self: Any, input_: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    import torch.distributed as dist

    assert dim == 0
    total = input_.contiguous()
    dist.all_reduce(total, group=self.device_group)
    sizes = sizes or [input_.shape[0] // self.world_size] * self.world_size
    return total.split(sizes)[self.rank_in_group]


if os.environ.get("MOE_GAPS") != "left":
    fill()
