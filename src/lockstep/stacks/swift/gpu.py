"""The incident's job on CUDA and NCCL: the same spec as on a CPU, with less of the incident left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from lockstep import devices
from lockstep.experiments.stress.scenarios import LATE_RANK, Arm, stress_arms
from lockstep.stacks.swift.outside_faults import stop_worker
from lockstep.stacks.swift.spec import INCIDENT, Arguments, JobSpec, Layout

GPU_SIZES: Arguments = {"eval_steps": 3, "save_steps": 4, "max_steps": 8}
"""Eight steps instead of an epoch; eval and save fall on different steps. The rest is the incident's."""
PROMPTS_PER_RANK = 2
"""Prompts of one rank's batch: 16 completions, 8 for each prompt."""
TINY_MODELS_CACHE: Arguments = {"vllm_engine_kwargs": json.dumps({"num_gpu_blocks_override": 8192})}
"""131,072 tokens. vLLM keeps a Python object for each block; a GPU would hold millions of this model's."""
NO_REPORT = {"report_to": "none (nothing leaves the machine)"}
NO_FLASH_ATTN = {
    "attn_impl": "sdpa (flash-attn is not installed)",
    "padding_free": "off (needs flash-attn)",
}


@dataclass(frozen=True)
class GpuOptions:
    """What of the job can be chosen on GPUs; see `lockstep.devices.split` for the first two."""

    gpus: str | None = None
    rollout_gpus: str | None = None
    model: Path | None = None
    """A real checkpoint's folder; None for the tiny one."""


def gpu_layout(found: Sequence[int], options: GpuOptions) -> Layout:
    """Raises `DeviceError`."""
    trainer, rollout = devices.split(found, options.gpus, options.rollout_gpus)
    return Layout(trainer=trainer, rollout=rollout)


def pretended_gpus(options: GpuOptions) -> tuple[int, ...]:
    """The GPUs that `--gpus` speaks of, there or not; eight, as in the incident, if it is not given."""
    words = (options.gpus or "8").split(",")
    if len(words) == 1 and words[0].isdigit():
        return tuple(range(int(words[0])))
    return tuple(int(word) for word in words if word.strip().isdigit())


def has_flash_attn() -> bool:
    return find_spec("flash_attn") is not None


def gpu_job(
    name: str, *, model: Path, datasets: Path, layout: Layout, flash_attn: bool, tiny: bool = True
) -> JobSpec:
    """The incident's job on this host's GPUs.

    `flash_attn`: whether the trainer can use it, and padding-free batches with it. `tiny`: whether `model` is
    the tiny checkpoint.
    """
    instead = NO_REPORT if flash_attn else NO_REPORT | NO_FLASH_ATTN
    attention: Arguments = {} if flash_attn else {"attn_impl": "sdpa", "padding_free": False}
    return JobSpec(
        name=name,
        device="cuda",
        layout=layout,
        model=model,
        train_data=datasets / "train.jsonl",
        val_data=f"{datasets / 'val.jsonl'}#{min(PROMPTS_PER_RANK * len(layout.trainer), 16)}",
        rollout=dict(TINY_MODELS_CACHE) if tiny else {},
        trainer=INCIDENT | GPU_SIZES | attention | {"report_to": "none"},
        instead=instead,
    )


def gpu_arms(job: JobSpec) -> list[Arm]:
    """The arms of the CPU, and the same fault with nothing patched: SIGSTOP for rank 0's worker."""
    arms = stress_arms(job)
    stop = partial(
        stop_worker, rank=0, generation=int(LATE_RANK["generation"]), run_s=0.06, stop_s=3.0, times=40
    )
    _, without, cured = arms
    return [
        *arms,
        Arm(
            job.with_(name="stopped, without the fix"),
            without.expected,
            group=without.group,
            waiting=without.waiting,
            absent=without.absent,
            outside=stop,
        ),
        Arm(
            job.with_(name="stopped, with the fix", remedy=cured.spec.remedy),
            cured.expected,
            boundaries=cured.boundaries,
            outside=stop,
        ),
    ]
