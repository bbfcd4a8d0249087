"""Entry point `vllm.general_plugins`: vLLM calls `register` in each of its processes, an engine core among
them.

Boundaries and beats of an engine core (vLLM 0.11.0): a wave ends when
`DPEngineCoreProc._has_global_unfinished_reqs` says no; a step is one `EngineCoreProc._process_engine_step`.
The group behind that question is made before any plugin is loaded and outside torch's registry, so it is
announced when the busy loop begins.

On CUDA an engine captures its graphs between its groups' making and its serving: no records are read until
then.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from lockstep.env import CPU, ROLLOUT_RANK, RUN_DIR

CORE = "vllm.v1.engine.core"
WORKER = "vllm.v1.worker.gpu_worker"


def register() -> None:
    """Prepares this process for the job; does nothing when no job asked for it."""
    if os.environ.get(CPU):
        from lockstep.stacks.swift.inside import cpu

        cpu.apply_rollout()
    if os.environ.get(RUN_DIR) and _role() is not None:
        _watch_engine()


def _role() -> tuple[str, int] | None:
    """vLLM names its processes: `EngineCore_DP0`, `VllmWorker-0`."""
    name = multiprocessing.current_process().name
    dp_rank = int(os.environ.get(ROLLOUT_RANK, "0"))
    if name.startswith("EngineCore"):
        tail = name.rpartition("_DP")[2]
        # One worker has all engine cores behind it when the engine is asynchronous; a core that is no part of
        # vLLM's data
        # parallelism is called 0 whatever its worker's rank.
        return "engine core", max(dp_rank, int(tail) if tail.isdigit() else 0)
    if "Worker" in name:
        tail = name.rpartition("-")[2]
        return "engine worker", int(tail) if tail.isdigit() else 0
    return None


def _watch_engine() -> None:
    from lockstep.inside.group_names import Group
    from lockstep.inside.hooks import after_import, wrap
    from lockstep.inside.signal_flush import before_abort
    from lockstep.stacks.swift.inside.recorded import attach
    from lockstep.stacks.swift.inside.rollout import captures_graphs, watch_weights

    role = _role()
    probe = attach("rollout", *role) if role else None
    if probe is None:
        return
    before_abort(probe.close)
    if captures_graphs():
        probe.hold_records()

    def serve(original: Any, self: Any) -> Any:
        probe.release_records()
        return original(self)

    def warm_up(original: Any, self: Any) -> Any:
        result = original(self)
        probe.release_records()
        return result

    def busy_loop(original: Any, self: Any) -> Any:
        probe.release_records()
        group = self.dp_group
        ranks = tuple(range(group.size()))
        probe.announce(0, Group("rollout.unfinished", "stateless_init_dp_group", "gloo", ranks, group.rank()))
        return original(self)

    def unfinished(original: Any, self: Any, local: bool) -> bool:
        more: bool = original(self, local)
        if not more:
            probe.boundary("wave end")
        return more

    def step(original: Any, *args: Any, **kwargs: Any) -> Any:
        probe.beats += 1
        return original(*args, **kwargs)

    if role and role[0] == "engine core":
        if captures_graphs():
            wrap(f"{CORE}:EngineCoreProc.run_busy_loop", serve)
        wrap(f"{CORE}:DPEngineCoreProc.run_busy_loop", busy_loop)
        wrap(f"{CORE}:DPEngineCoreProc._has_global_unfinished_reqs", unfinished)
        wrap(f"{CORE}:EngineCoreProc._process_engine_step", step)
    elif captures_graphs():  # its engine core is another process; this one waits for calls all the time
        after_import(WORKER, lambda: wrap(f"{WORKER}:Worker.compile_or_warm_up_model", warm_up))
    watch_weights(probe)
