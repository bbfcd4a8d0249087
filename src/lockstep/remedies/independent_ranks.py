"""Cure for the hang of `swift rollout --vllm_data_parallel_size N`: every data-parallel rank an engine of its
own.

Take this one file and give it to the rollout:

    swift rollout --vllm_data_parallel_size 2 ... --external_plugins independent_ranks.py

For ms-swift 3.10.3 to 4.2.0 (4.2.1 does the same by itself) with vLLM 0.11.0, synchronous engine, dense
models (tensor parallel size as you like). A dense model's data-parallel ranks have nothing to tell each
other: vLLM keeps them in lockstep all the same, and a rank whose worker is slow to add its requests can be
left waiting in the all-reduce of a wave that its peers have not begun. This file takes the ranks out of
vLLM's data-parallel mode before the engine is made. What stays is what the trainer sees: the same server, the
same split of the requests, and the same ranks 0..N*TP-1 in the weight-sync group.

Not for expert parallelism: there the ranks of one layer hold different experts and must step together. It
refuses, saying so.

Replaces, at import: `SwiftRolloutDeploy.get_infer_engine` in `swift.llm.infer.rollout` (ms-swift 3) or
`swift.pipelines.infer.rollout` (ms-swift 4).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

if int(version("ms-swift").partition(".")[0]) < 4:
    from swift.llm.infer import rollout
    from trl.scripts import vllm_serve as joining  # whose `init_communicator` joins the weight-sync group
else:
    from swift.pipelines.infer import rollout

    joining = rollout

FIRST_RANK = "INDEPENDENT_RANKS_FIRST"
"""Environment variable, from worker to engine: place of the engine's first rank in the weight-sync group."""

_DATA_PARALLEL = (
    "VLLM_DP_RANK",
    "VLLM_DP_RANK_LOCAL",
    "VLLM_DP_SIZE",
    "VLLM_DP_MASTER_IP",
    "VLLM_DP_MASTER_PORT",
)


class IndependentRanksError(RuntimeError):
    """The rollout cannot be cut into independent engines."""


def split(env: Mapping[str, str], tensor_parallel: int) -> tuple[dict[str, str | None], int]:
    """What to change in a worker's environment, and the place of its engine's first rank in the weight-sync
    group.

    `env` is what ms-swift has set for data-parallel rank r of n (`VLLM_DP_RANK`, `VLLM_DP_SIZE`). A value of
    None means: unset. The engine gets the r-th `tensor_parallel` devices of those visible; on vLLM's CPU
    build the same of its sets of cores.
    """
    rank, size = int(env["VLLM_DP_RANK"]), int(env["VLLM_DP_SIZE"])
    first = rank * tensor_parallel
    changes: dict[str, str | None] = dict.fromkeys(_DATA_PARALLEL)
    for name, separator in (("CUDA_VISIBLE_DEVICES", ","), ("VLLM_CPU_OMP_THREADS_BIND", "|")):
        value = env.get(name, "")
        parts = [part.strip() for part in value.split(separator)] if value else []
        if not parts and name == "CUDA_VISIBLE_DEVICES":
            parts = [str(device) for device in range(size * tensor_parallel)]
        if not parts or (len(parts) == 1 and parts[0] in ("all", "auto", "nobind")):
            continue
        if len(parts) < size * tensor_parallel:
            raise IndependentRanksError(
                f"{name}={value} names {len(parts)} of the {size * tensor_parallel} that data parallel "
                f"size {size} times tensor parallel size {tensor_parallel} needs"
            )
        changes[name] = separator.join(parts[first : first + tensor_parallel])
    return changes, first


def refuse_unsuitable(args: Any) -> None:
    """Raises IndependentRanksError for a rollout that this cure does not fit."""
    if args.vllm_enable_expert_parallel:
        raise IndependentRanksError(
            "expert parallelism spreads the experts of one layer over the data-parallel ranks, so they must "
            "step together: independent engines would each lack the others' experts. Drop "
            "--vllm_enable_expert_parallel or this plugin"
        )
    if args.vllm_use_async_engine:
        raise IndependentRanksError(
            "the asynchronous engine runs all data-parallel ranks behind one client with a coordinator and "
            "does not need this plugin. Drop --vllm_use_async_engine or this plugin"
        )


class IndependentWeightSync(rollout.WeightSyncWorkerExtension):  # type: ignore[misc]  # an untyped base
    """Joins the weight-sync group at the engine's first rank plus its own, not at its own alone."""

    def init_communicator(self, *args: Any, **kwargs: Any) -> None:
        world_group = joining.get_world_group
        first = int(os.environ[FIRST_RANK])
        # It asks the world group for this worker's rank. Workers join one at a time, each in a process of its
        # own.
        joining.get_world_group = lambda: _Shifted(world_group(), first)
        try:
            super().init_communicator(*args, **kwargs)
        finally:
            joining.get_world_group = world_group


class _Shifted:
    """A group, with this process's rank in it `first` later."""

    def __init__(self, group: Any, first: int) -> None:
        self._group = group
        self.rank = group.rank + first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


def _install() -> None:
    deploy = rollout.SwiftRolloutDeploy
    for holder, name in ((deploy, "get_infer_engine"), (joining, "get_world_group")):
        if not hasattr(holder, name):
            raise IndependentRanksError(
                f"made for ms-swift 3.10.3 to 4.2.0: {holder.__name__}.{name} is not in {version('ms-swift')}"
            )
    original = deploy.get_infer_engine

    @functools.wraps(original)
    def get_infer_engine(args: Any, *rest: Any, **kwargs: Any) -> Any:
        refuse_unsuitable(args)
        if "VLLM_DP_RANK" not in os.environ:
            raise IndependentRanksError(
                f"ms-swift {version('ms-swift')} does not tell vLLM of data-parallel ranks, since each is an "
                "engine of its own (from 4.2.1 on): drop this plugin"
            )
        changes, first = split(os.environ, args.vllm_tensor_parallel_size)
        for name, value in changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        os.environ[FIRST_RANK] = str(first)
        engine = rollout.GRPOVllmEngine

        def make(*a: Any, **k: Any) -> Any:
            k["engine_kwargs"]["worker_extension_cls"] = f"{__name__}.{IndependentWeightSync.__name__}"
            return engine(*a, **k)

        rollout.GRPOVllmEngine = make
        try:
            return original(args, *rest, **kwargs)
        finally:
            rollout.GRPOVllmEngine = engine

    deploy.get_infer_engine = staticmethod(get_infer_engine)


_install()
