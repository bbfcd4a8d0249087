"""A rollout worker gets a request that it cannot turn into an engine's input: the worker raises before it
adds any request.

ms-swift 3.10.3 logs that and answers nothing (`llm_worker` in `swift/llm/infer/rollout.py`); the other
workers go on.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.env import ROLLOUT_RANK
from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.inside.faults import tell
from lockstep.stacks.swift.inside.rollout import ENGINE


def broken_image(rank: int, generation: int) -> None:
    """DP rank `rank`'s worker finds the first image of its `generation`-th generation (from 1) cut off
    half-way.
    """

    def damage(request: Any) -> None:
        images = _get(request, "images")
        images[0] = _cut(images[0])

    _first_request(rank, generation, "gets a broken image", damage)


def over_limit(rank: int, generation: int, words: int) -> None:
    """DP rank `rank`'s worker gets a prompt with `words` words more, over `--vllm_max_model_len`."""

    def damage(request: Any) -> None:
        message = _get(request, "messages")[-1]
        message["content"] += " colour" * words

    _first_request(rank, generation, "gets a prompt over the limit", damage)


def slow_images(rank: int, generation: int, seconds: float) -> None:
    """DP rank `rank`'s worker takes `seconds` for each request of its `generation`-th generation before it
    adds the first one; in other threads, as for images that it fetches. Slow, not wrong.
    """
    begun = 0

    def infer(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        begun += 1
        return original(*args, **kwargs)

    def encode(original: Any, *args: Any, **kwargs: Any) -> Any:
        if begun == generation and int(os.environ.get(ROLLOUT_RANK, "-1")) == rank:
            tell(f"rank {rank}'s worker takes {seconds} s for a request of generation {generation}")
            time.sleep(seconds)
        return original(*args, **kwargs)

    wrap(f"{ENGINE}.infer", infer)
    wrap("swift.llm.template.base:Template.encode", encode)


def _first_request(rank: int, generation: int, what: str, damage: Callable[[Any], None]) -> None:
    begun = 0

    def infer(original: Any, self: Any, infer_requests: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == generation and int(os.environ.get(ROLLOUT_RANK, "-1")) == rank:
            tell(f"rank {rank}'s worker {what} in generation {generation}")
            damage(infer_requests[0])
        return original(self, infer_requests, *args, **kwargs)

    wrap(f"{ENGINE}.infer", infer)


def _get(request: Any, name: str) -> Any:
    return request[name] if isinstance(request, dict) else getattr(request, name)


def _cut(image: str) -> str:
    path = Path(os.environ.get("ROOT_IMAGE_DIR", "")) / image
    data = path.read_bytes() if len(image) < 1024 and path.exists() else base64.b64decode(image)
    return base64.b64encode(data[: len(data) // 2]).decode()
