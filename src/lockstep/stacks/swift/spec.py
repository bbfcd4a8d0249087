"""What to run: the job of the incident, as data. Nothing here starts anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.stacks.base import Launch, Stack
from lockstep.stacks.swift import plugins

SHAPES_REWARD = Path(plugins.__file__).with_name("shapes_reward.py")

Arguments = dict[str, "str | int | float | bool | list[str]"]


@dataclass(frozen=True)
class Layout:
    """Which devices each side has. On a CPU these are counts only."""

    trainer: tuple[int, ...]
    rollout: tuple[int, ...]
    tensor_parallel: int = 1

    @property
    def data_parallel(self) -> int:
        return len(self.rollout) // self.tensor_parallel


@dataclass(frozen=True)
class JobSpec:
    """One run of the job: the two commands' arguments, and what is done to it."""

    name: str
    device: str
    """`cpu` or `cuda`."""
    layout: Layout
    model: Path
    train_data: Path
    val_data: str
    rollout: Arguments
    trainer: Arguments
    rollout_env: dict[str, str] = field(default_factory=dict)
    """Variables of the rollout, besides those that every job needs."""
    servers: int = 1
    """Rollout servers, among which the rollout's devices are divided evenly."""
    fault: dict[str, Any] | None = None
    remedy: str | None = None
    resume_from: Path | None = None
    """A checkpoint that the trainer goes on from."""
    reward: Path = SHAPES_REWARD
    """File of the reward function, which registers itself as `shapes`."""
    cache: Path | None = None
    """What the packages compile or look up once, kept between jobs; the caller's own caches if None."""
    cuda_home: Path | None = None
    """Where a stub of the CUDA toolkit is made for the trainer, see `toolkit`; None if the host
    has the real one, or needs none."""
    instead: dict[str, str] = field(default_factory=dict)
    """Arguments and variables of the incident's script that this device cannot honour: name -> what is done
    instead."""

    @property
    def stack(self) -> Stack:
        from lockstep.stacks.swift.description import STACK

        return STACK

    def ports_needed(self) -> int:
        from lockstep.stacks.swift.commands import Ports

        return Ports.needed(self.servers)

    def launch(self, ports: Sequence[int], run_dir: Path, base: Mapping[str, str] = os.environ) -> Launch:
        from lockstep.stacks.swift.commands import launch

        return launch(self, ports, run_dir, base)

    def with_(self, **changes: Any) -> JobSpec:
        return replace(self, **changes)

    def sized(self, steps: int, eval_steps: int, save_steps: int) -> JobSpec:
        sizes: Arguments = {"max_steps": steps, "eval_steps": eval_steps, "save_steps": save_steps}
        return replace(self, trainer=self.trainer | sizes)

    def groups(self) -> tuple[str, ...]:
        from lockstep.stacks.swift.groups import expected_groups

        return expected_groups(self)

    def service_groups(self) -> tuple[str, ...]:
        from lockstep.stacks.swift.groups import rollout_groups

        return rollout_groups(self)

    def describe(self) -> str:
        layout = self.layout
        ranks = (
            f"{len(layout.trainer)} ranks of the trainer, "
            f"rollout of data parallel size {layout.data_parallel}"
        )
        if self.device == "cpu":
            return f"no GPU: {ranks}, all on the CPU"
        trainer, rollout = (",".join(map(str, gpus)) for gpus in (layout.trainer, layout.rollout))
        return (
            f"GPUs: trainer {trainer}; rollout {rollout} "
            f"({ranks}, tensor parallel size {layout.tensor_parallel})"
        )


INCIDENT: Arguments = {
    "load_from_cache_file": True,
    "split_dataset_ratio": 0.0,
    "train_type": "full",
    "torch_dtype": "bfloat16",
    "max_length": 1024,
    "truncation_strategy": "delete",
    "max_completion_length": 128,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 16,
    "learning_rate": 2e-6,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True,
    "save_strategy": "steps",
    "eval_strategy": "steps",
    "eval_steps": 400,
    "save_steps": 400,
    "logging_steps": 1,
    "warmup_ratio": 0.05,
    "dataloader_num_workers": 8,
    "num_generations": 8,
    "temperature": 1.1,
    "top_p": 0.8,
    "epsilon_high": 0.28,
    "dynamic_sample": True,
    "max_resample_times": 3,
    "importance_sampling_level": "sequence",
    "deepspeed": "zero3",
    "report_to": "wandb",
    "log_completions": True,
    "log_entropy": False,
    "async_generate": False,
    "beta": 0.01,
    "attn_impl": "flash_attn",
    "padding_free": True,
}
"""The trainer's arguments as the incident's script has them, less paths, addresses and the names of its
reward."""

CPU_SIZES: Arguments = {
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "max_completion_length": 8,
    "dataloader_num_workers": 1,
    "eval_steps": 3,
    "save_steps": 4,
    "max_steps": 8,
}
"""Sizes for two cores: two prompts of eight completions a step; eval and save fall on different steps."""

CPU_INSTEAD = {
    "PYTORCH_CUDA_ALLOC_CONF": "not set (needs CUDA)",
    "attn_impl": "sdpa (flash_attn needs CUDA)",
    "padding_free": "off (needs flash_attn)",
    "report_to": "none (nothing leaves the machine)",
}


def cpu_job(name: str, *, model: Path, datasets: Path) -> JobSpec:
    """The incident's job on one machine without a GPU: two trainer ranks on gloo, a rollout of data parallel
    size 2."""
    return JobSpec(
        name=name,
        device="cpu",
        layout=Layout(trainer=(0, 1), rollout=(0, 1)),
        model=model,
        train_data=datasets / "train.jsonl",
        val_data=f"{datasets / 'val.jsonl'}#4",
        rollout={
            "vllm_max_model_len": 512,
            "vllm_enforce_eager": True,
            # 16,384 tokens: the smallest cache that can be asked for by size is 1 GiB.
            "vllm_engine_kwargs": '{"num_gpu_blocks_override": 1024}',
        },
        trainer=INCIDENT
        | CPU_SIZES
        | {"attn_impl": "sdpa", "padding_free": False, "report_to": "none", "ddp_backend": "gloo"},
        instead=CPU_INSTEAD,
    )
