"""How a soak asks the rollout: as the trainer's client does."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.stacks.base import Prompt
from lockstep.stacks.swift.spec import JobSpec

TEMPERATURE, TOP_P = 1.1, 0.8
"""As in the incident's script."""


def read_prompts(dataset: Path) -> list[Prompt]:
    """Return the rows of a checked data set (`lockstep.fixtures.shapes.check_dataset`)."""
    prompts = []
    for line in dataset.read_text().splitlines():
        row = json.loads(line)
        pictures = (base64.b64encode((dataset.parent / image).read_bytes()) for image in row["images"])
        text = row["messages"][0]["content"]
        prompts.append(Prompt(text, tuple(picture.decode() for picture in pictures)))
    return prompts


def body(prompts: Sequence[Prompt], max_tokens: int, seed: int) -> dict[str, Any]:
    """Return what ms-swift 3.10.3's `VLLMClient.infer` posts."""
    return {
        "infer_requests": [
            {"messages": [{"role": "user", "content": prompt.text}], "images": list(prompt.images)}
            for prompt in prompts
        ],
        "request_config": {
            "max_tokens": max_tokens,
            "temperature": TEMPERATURE,
            "top_p": TOP_P,
            "seed": seed,
            "n": 1,
        },
        "use_tqdm": False,
    }


def workers(job: JobSpec) -> int:
    """Return how many processes add requests: one for all ranks where the engine is asynchronous."""
    return 1 if job.rollout.get("vllm_use_async_engine") else job.layout.data_parallel
