"""Short ways for the audit's tests: scripts in, findings out."""

from __future__ import annotations

from pathlib import Path

from lockstep.audit import Finding, Job, findings, from_texts

SCRIPTS = Path(__file__).parent.parent / "data" / "scripts"

ROLLOUT = "CUDA_VISIBLE_DEVICES=6,7 swift rollout --model m --port 8001"
TRAINER = (
    "CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model m --use_vllm true "
    "--vllm_server_host 127.0.0.1 --vllm_server_port 8001 --per_device_train_batch_size 4 "
    "--per_device_eval_batch_size 4 --num_generations 8 --val_dataset v"
)
CHECK = "until curl -sf 127.0.0.1:8001/health/; do sleep 5; done"


def script(
    rollout: str = f"{ROLLOUT} --vllm_tensor_parallel_size 2 &", wait: str = CHECK, trainer: str = TRAINER
) -> str:
    """A whole job; without arguments, one without a hazard."""
    return f"#!/bin/bash\n{rollout}\n{wait}\n{trainer}\n"


def job(text: str, versions: dict[str, str] | None = None) -> Job:
    return from_texts([("x.sh", text)], versions)


def audit(text: str, versions: dict[str, str] | None = None, step: int | None = None) -> list[Finding]:
    return findings(job(text, versions), step)


def by_id(found: list[Finding]) -> dict[str, Finding]:
    """Findings by id; of several of one id, the first."""
    return {finding.id: finding for finding in reversed(found)}


def read(name: str) -> str:
    return (SCRIPTS / name).read_text()
