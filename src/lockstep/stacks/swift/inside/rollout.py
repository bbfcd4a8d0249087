"""Boundaries of the rollout's front: the HTTP server, and the workers that add requests to the engines."""

from __future__ import annotations

import os
from typing import Any

from lockstep.env import CPU, ROLLOUT_FIRST, ROLLOUT_RANK, ROLLOUT_SERVER
from lockstep.inside.attach import current
from lockstep.inside.hooks import wrap
from lockstep.inside.recorder import Probe
from lockstep.stacks.swift.compat import OWN_RANK, place
from lockstep.stacks.swift.inside.recorded import attach
from lockstep.stacks.swift.inside.weight_sync import count_weight_sync

ENGINE = place("engine")


def captures_graphs() -> bool:
    """Whether an engine in this process captures CUDA graphs before it serves."""
    return not os.environ.get(CPU)


def watch_server() -> None:
    attach("rollout", "server", int(os.environ.get(ROLLOUT_SERVER, "0")))


def watch_weights(probe: Probe) -> None:
    """Counts the weight sync of an engine in this process, and marks its begin and end."""

    def sync(original: Any, *args: Any, **kwargs: Any) -> Any:
        probe.boundary("weight sync begin")
        result = original(*args, **kwargs)
        probe.boundary("weight sync end")
        return result

    count_weight_sync(probe, "rollout", int(os.environ.get(ROLLOUT_SERVER, "0")))
    wrap(f"{place('rollout')}:WeightSyncWorkerExtension.update_flattened_params", sync)


def watch_worker() -> None:
    """Attaches the probe when this worker makes its engine: only then does it know its data-parallel rank."""

    def make(original: Any, *args: Any, **kwargs: Any) -> Any:
        rank = int(os.environ.get(ROLLOUT_FIRST, "0")) + int(_own_rank())
        os.environ[ROLLOUT_RANK] = str(rank)
        probe = attach("rollout", "worker", rank)
        if probe is None or os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
            return original(*args, **kwargs)
        watch_weights(probe)  # the engine is in this process
        if captures_graphs():
            probe.hold_records()
        engine = original(*args, **kwargs)
        probe.release_records()
        return engine

    adding = False

    def generate(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal adding
        probe = current()
        if probe is None:
            return original(*args, **kwargs)
        probe.boundary("generate begin")
        adding = True
        try:
            result = original(*args, **kwargs)
        except BaseException:
            probe.boundary("generate failed")
            raise
        finally:
            adding = False
        probe.boundary("generate end")
        return result

    def step(original: Any, *args: Any, **kwargs: Any) -> Any:
        """The worker asks for answers only when it has added all its requests."""
        nonlocal adding
        if adding and (probe := current()) is not None:
            adding = False
            probe.boundary("requests added")
        return original(*args, **kwargs)

    def add(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if (probe := current()) is not None:
            probe.beats += 1
        return result

    wrap(f"{place('rollout')}:SwiftRolloutDeploy.get_infer_engine", make)
    wrap(f"{ENGINE}.infer", generate)
    wrap("vllm.v1.engine.llm_engine:LLMEngine.step", step)
    wrap(place("add request"), add)


def _own_rank() -> str:
    return os.environ.get("VLLM_DP_RANK") or os.environ.get(OWN_RANK) or "0"
