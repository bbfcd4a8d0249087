"""What the pinned stack lacks on a machine without a GPU, put in at import time. Nothing of this is used on a
GPU.

Each patch names the function it replaces, of which release, and why; one whose target is missing raises
`HookError`.
"""

from __future__ import annotations

import os
from typing import Any

from lockstep.env import CPU
from lockstep.inside.hooks import replace, wrap
from lockstep.stacks.swift.compat import OWN_RANK, place, swift_4

CORES = "VLLM_CPU_OMP_THREADS_BIND"
"""Environment variable of vLLM's CPU build: a set of cores for each engine."""

_applied = False


def rollout_environment(data_parallel: int, tensor_parallel: int, *, first: int = 0) -> dict[str, str]:
    """vLLM's CPU build: one set of cores for each engine, from the `first` core on, a small cache, no
    compilation.
    """
    cores = sorted(os.sched_getaffinity(0))
    engines = data_parallel * tensor_parallel
    env = {
        CPU: str(engines),
        CORES: "|".join(str(cores[(first + i) % len(cores)]) for i in range(engines)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    if tensor_parallel > 1:
        # An engine's processes spin while they wait for each other, and the trainer needs the same cores.
        env["VLLM_SLEEP_WHEN_IDLE"] = "1"
    return env


def trainer_environment() -> dict[str, str]:
    """DeepSpeed's accelerator, and one thread a rank: the ranks and the engines share the cores."""
    return {CPU: "0", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}


def apply_rollout() -> None:
    """For the rollout's server, workers and engine cores."""
    _once(
        _device_count, _whole_prefill, _own_cores, _no_streams,
        lambda: _gloo_weight_sync(place("server communicator")),
    )  # fmt: skip


def apply_trainer() -> None:
    """For a trainer rank; before ms-swift has parsed its arguments."""
    _once(_bf16, _memory, _no_streams, _no_shared_memory_op, _whole_gather)


def apply_client() -> None:
    """For trainer rank 0, when it has imported its client of the rollout: it connects before it loads any
    plugin.
    """
    _gloo_weight_sync(place("client"))
    _no_streams()


def _once(*patches: Any) -> None:
    global _applied
    if not _applied:
        _applied = True
        for patch in patches:
            patch()


def _device_count() -> None:
    """ms-swift 3.10.3 refuses a rollout whose data parallel size exceeds the number of GPUs."""
    replace(place("device count"), lambda: int(os.environ[CPU]))


def _whole_prefill() -> None:
    """vLLM 0.11.0 always chunks prefills and caches prefixes; on x86 its CPU kernels for both need Intel's
    extension for PyTorch, whose import costs every process seconds. Without it: what the same function does
    on ARM, neither of them.
    """

    def set_default_args(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.enable_chunked_prefill = False
        self.enable_prefix_caching = False

    wrap(place("prefill"), set_default_args)


def _gloo_weight_sync(module: str) -> None:
    """Weight sync of trl 0.24.0 (server) and ms-swift 3.10.3 (client) is NCCL only."""
    replace(f"{module}:PyNcclCommunicator", _gloo_communicator())


def _own_cores() -> None:
    """From 4.2.1 on ms-swift gives each worker its own GPUs and keeps its rank from vLLM; the sets of cores
    of vLLM's CPU build are still everybody's.
    """

    def get_infer_engine(original: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        rank, cores = os.environ.get(OWN_RANK), os.environ.get(CORES, "")
        if rank is not None and not args.vllm_use_async_engine:
            size = args.vllm_tensor_parallel_size
            first = int(rank) * size
            os.environ[CORES] = "|".join(cores.split("|")[first : first + size])
        return original(args, *rest, **kwargs)

    if swift_4():
        wrap(f"{place('rollout')}:SwiftRolloutDeploy.get_infer_engine", get_infer_engine)


def _no_streams() -> None:
    """ms-swift 4 waits for CUDA streams around its weight sync, also where there is no GPU."""
    if not swift_4():
        return
    import contextlib

    import torch

    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_stream = lambda device=None: None
    torch.cpu.device = lambda device: contextlib.nullcontext()


def _bf16() -> None:
    """transformers 4.57.1 takes bf16 without `--use_cpu` for a mistake; and `--use_cpu` switches DeepSpeed
    off.
    """
    replace("transformers.training_args:is_torch_bf16_gpu_available", lambda: True)


def _memory() -> None:
    """ms-swift 3.10.3 logs `torch.<device>.max_memory_reserved`, which torch 2.8.0 lacks for the CPU."""
    import torch

    torch.cpu.max_memory_reserved = lambda device=None: 0


def _no_shared_memory_op() -> None:
    """DeepSpeed 0.17.6 compiles an all-reduce over shared memory, for inference on one host, when it makes
    its first group on a CPU. The job does not use it, it needs a C++ compiler, and a build that was killed
    leaves a lock on which the next one waits without end. `build_shm_op` returns None where the operation is
    not to be had; now it always does.
    """
    replace("deepspeed.comm.torch:build_shm_op", lambda: None)


def _whole_gather() -> None:
    """DeepSpeed 0.17.6 gathers several parameters at once and waits for the last of them only
    (`deepspeed/runtime/zero/partition_parameters.py`, `_allgather_params_coalesced`). On a CUDA stream that
    is enough; gloo finishes in any order, and a large parameter would be read before it is there.
    """

    def all_gather_into_tensor(original: Any, *args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        if work is not None:
            work.wait()
        return work

    wrap("deepspeed.comm:all_gather_into_tensor", all_gather_into_tensor)


def _gloo_communicator() -> type:
    import torch
    import torch.distributed as dist

    class GlooCommunicator:
        """Has of `vllm.distributed.device_communicators.pynccl.PyNcclCommunicator` what weight sync calls."""

        def __init__(self, group: Any, device: Any, library_path: str | None = None) -> None:
            self.group, self.rank, self.world_size = group, group.rank, group.world_size
            self.device = torch.device("cpu")
            store = dist.PrefixStore("weight-sync", group.store)
            self._gloo = dist.ProcessGroupGloo(store, self.rank, self.world_size, dist.default_pg_timeout)
            # With a name it is not taken for one of vLLM's own stateless groups.
            named = dist.ProcessGroup(store, self.rank, self.world_size)
            named._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
            named._set_group_name("weight-sync on gloo")
            self._named = named

        def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = src, 0
            self._gloo.broadcast([tensor], options).wait()

        def __del__(self) -> None:
            # The store must go before the group closes the socket that the store's server listens on: that
            # server ends the whole process when it is closed under it. Both of these hold the store.
            self._named = self._gloo = None

    return GlooCommunicator
