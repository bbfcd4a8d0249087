"""Boundaries of the rollout's front: the HTTP server, and the workers that add requests to the engines."""

from __future__ import annotations

import os
from typing import Any

from lockstep.probe.attach import attach, current
from lockstep.probe.hooks import wrap

ENGINE = "swift.llm.infer.infer_engine.grpo_vllm_engine:GRPOVllmEngine"
WORKER_RANK = "LOCKSTEP_ROLLOUT_RANK"
"""Environment variable: tells an engine core, a child of the worker, its data-parallel rank."""


def watch_server() -> None:
    attach("rollout", "server", 0)


def watch_worker() -> None:
    """Attaches the probe when this worker makes its engine: only then does it know its data-parallel rank."""

    def make(original: Any, *args: Any, **kwargs: Any) -> Any:
        rank = os.environ.get("VLLM_DP_RANK", "0")
        os.environ[WORKER_RANK] = rank
        attach("rollout", "worker", int(rank))
        return original(*args, **kwargs)

    def generate(original: Any, *args: Any, **kwargs: Any) -> Any:
        probe = current()
        if probe is None:
            return original(*args, **kwargs)
        probe.boundary("generate begin")
        result = original(*args, **kwargs)
        probe.boundary("generate end")
        return result

    def add(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if (probe := current()) is not None:
            probe.beats += 1
        return result

    wrap("swift.llm.infer.rollout:SwiftRolloutDeploy.get_infer_engine", make)
    wrap(f"{ENGINE}.infer", generate)
    wrap("swift.llm.infer.infer_engine.vllm_engine:VllmEngine._add_request", add)
