"""The incident's job on CUDA and NCCL: the same spec as on a CPU, with less of the incident left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lockstep import devices
from lockstep.stacks.base import Choice
from lockstep.stacks.swift.inside import one_gpu
from lockstep.stacks.swift.spec import INCIDENT, Arguments, JobSpec, Layout

GPU_SIZES: Arguments = {
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "eval_steps": 3,
    "save_steps": 4,
    "max_steps": 8,
}
"""Eight steps instead of an epoch; eval and save fall on different steps. Half of the incident's batch: a
rollout worker that adds 48 requests takes about as long for it as its peer's wave lasts by itself (32 steps),
and then the control hangs, too. The rest is the incident's."""
PROMPTS_PER_RANK = 1
"""Prompts of one rank's batch: 8 completions, all for one prompt."""
PATIENT: Arguments = {"vllm_server_timeout": 600}
"""Seconds that the trainer waits for the rollout: ms-swift's own 240 may be too few where vLLM compiles."""
LONGEST = 4096
"""Tokens of a real checkpoint's prompt (1,024, as many for a picture) and answer (128), at most.
A cache for its whole context, 262,144 tokens, might not fit beside its weights."""
TINY_MODELS_CACHE: Arguments = {"vllm_engine_kwargs": json.dumps({"num_gpu_blocks_override": 8192})}
"""131,072 tokens. vLLM keeps a Python object for each block; a GPU would hold millions of this model's."""
NO_REPORT = {"report_to": "none (nothing leaves the machine)"}
NO_NVCC = {"CUDA_HOME": "a stub whose nvcc only tells its release (no CUDA toolkit here, and DeepSpeed asks)"}
NO_FLASH_ATTN = {
    "attn_impl": "sdpa (flash-attn is not installed)",
    "padding_free": "off (needs flash-attn)",
}


def gpu_layout(found: Sequence[int], options: Choice) -> Layout:
    """Raises `DeviceError`."""
    trainer, rollout = devices.split(found, options.gpus, options.rollout_gpus)
    return Layout(trainer=trainer, rollout=rollout)


def rollout_layout(found: Sequence[int], options: Choice) -> Layout:
    """Of a rollout without a trainer. On one GPU it is there once for each engine. Raises `DeviceError`."""
    return Layout(trainer=(), rollout=devices.alone(found, options.gpus, options.rollout_gpus))


def pretended_gpus(options: Choice) -> tuple[int, ...]:
    """The GPUs that `--gpus` speaks of, there or not; eight, as in the incident, if it is not given."""
    words = (options.gpus or "8").split(",")
    if len(words) == 1 and words[0].isdigit():
        return tuple(range(int(words[0])))
    return tuple(int(word) for word in words if word.strip().isdigit())


def has_flash_attn() -> bool:
    return find_spec("flash_attn") is not None


def gpu_job(
    name: str,
    *,
    model: Path,
    datasets: Path,
    layout: Layout,
    flash_attn: bool,
    tiny: bool = True,
    cuda_home: Path | None = None,
) -> JobSpec:
    """The incident's job on this host's GPUs.

    `flash_attn`: whether the trainer can use it, and padding-free batches with it. `tiny`: whether `model` is
    the tiny checkpoint. `cuda_home`: where to make the stub of a CUDA toolkit; None where a real one is.
    """
    instead = NO_REPORT | ({} if flash_attn else NO_FLASH_ATTN) | ({} if cuda_home is None else NO_NVCC)
    attention: Arguments = {} if flash_attn else {"attn_impl": "sdpa", "padding_free": False}
    rollout: Arguments = dict(TINY_MODELS_CACHE) if tiny else {"vllm_max_model_len": LONGEST}
    environment: dict[str, str] = {}
    engines = len(layout.rollout)
    if len(set(layout.rollout)) < engines:
        rollout |= {"vllm_gpu_memory_utilization": one_gpu.MEMORY}
        environment = one_gpu.rollout_environment(engines)
        instead = instead | {"NCCL": f"gloo between the {engines} engines, which share one GPU"}
    return JobSpec(
        name=name,
        device="cuda",
        layout=layout,
        model=model,
        train_data=datasets / "train.jsonl",
        val_data=f"{datasets / 'val.jsonl'}#{max(1, min(PROMPTS_PER_RANK * len(layout.trainer), 16))}",
        rollout=rollout,
        rollout_env=environment,
        trainer=INCIDENT | GPU_SIZES | PATIENT | attention | {"report_to": "none"},
        cuda_home=cuda_home,
        instead=instead,
    )
