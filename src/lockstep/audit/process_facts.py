"""One process as a sheet of facts: what the two sides are compared by."""

from __future__ import annotations

from typing import Any

from lockstep.audit.checks.batch import arithmetic, is_grpo
from lockstep.audit.checks.boundaries import boundaries
from lockstep.audit.checks.environment import uses_master
from lockstep.audit.checks.ports import WEIGHT_SYNC, connects_to, serves_on
from lockstep.audit.devices import (
    asynchronous,
    data_parallel_here,
    devices,
    launcher_value,
    parallel,
    ranks_here,
    world_size,
)
from lockstep.audit.model import Job, Process, Value

_SHOWN = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "NPROC_PER_NODE",
    "NNODES",
    "NODE_RANK",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)
_SHOWN_FAMILIES = ("VLLM_", "NCCL_", "TORCH_", "PYTORCH_", "SWIFT_", "DS_", "DEEPSPEED_")
_MEMORY = [
    "vllm_gpu_memory_utilization",
    "vllm_max_model_len",
    "vllm_max_num_seqs",
    "vllm_enforce_eager",
    "deepspeed",
    "gradient_checkpointing",
    "sleep_level",
    "offload_model",
    "offload_optimizer",
    "move_model_batches",
    "max_length",
    "max_completion_length",
]


def sheet(process: Process, job: Job) -> dict[str, Any]:
    """What an audit tells of a process, as JSON types; docs/audit.md describes the fields."""
    found = devices(process)
    trainer, server = process.side == "trainer", process.side in ("rollout", "server")
    tensor, data = parallel(process)
    asynch = asynchronous(process) if process.side == "rollout" else None
    engine = (
        {True: "asynchronous", False: "synchronous", None: "unknown"}[asynch]
        if process.side == "rollout"
        else None
    )
    uses, why = uses_master(process)
    shown = boundaries(process) if trainer and not process.hidden else None
    return {
        "side": process.side,
        "program": process.program,
        "file": process.place.path,
        "line": process.place.line,
        "machine": process.command.machine or None,
        "background": process.command.background,
        "may_hide_options": list(process.hidden),
        "environment": {
            name: {
                **_value(setting.value),
                "line": setting.place.line,
                "file": setting.place.path,
                "set_by": setting.how,
            }
            for name, setting in sorted(process.command.env.items())
            if name in _SHOWN or name.startswith(_SHOWN_FAMILIES)
        },
        "uses_master": uses,
        "uses_master_reason": why,
        "master_addr": _optional(_master(process, "master_addr", "MASTER_ADDR")),
        "master_port": _optional(_master(process, "master_port", "MASTER_PORT")),
        "gpus": {
            "visible": list(found.visible) if found.visible is not None else None,
            "used": list(found.used) if found.used is not None else None,
        },
        "nproc_per_node": ranks_here(process) if trainer else None,
        "world_size": world_size(process) if trainer else ranks_here(process),
        "tensor_parallel_size": tensor if server else None,
        "data_parallel_size": data if server else None,
        "data_parallel_size_local": data_parallel_here(process) if server else None,
        "engine": engine,
        "ports": {
            "serves_on": _optional(serves_on(process)) if server else None,
            "connects_to": [_value(port) for port in connects_to(process)] if trainer else [],
            "weight_sync": _weight_sync(process),
        },
        "timeouts": {
            "vllm_server_timeout": _or_default(process, "vllm_server_timeout", "240")
            if connects_to(process)
            else None,
            "ddp_timeout": _or_default(process, "ddp_timeout", "1800") if trainer else None,
        },
        "save_every": shown.save if shown else None,
        "eval_every": shown.eval if shown else None,
        "batch": _batch(process, job) if trainer and is_grpo(process) else None,
        "memory": {name: value.text for name in _MEMORY if (value := process.option(name)) is not None},
    }


def _value(value: Value) -> dict[str, Any]:
    return {"value": value.text, "known": value.known}


def _optional(value: Value | None) -> dict[str, Any] | None:
    return None if value is None else _value(value)


def _master(process: Process, option: str, variable: str) -> Value | None:
    return launcher_value(process, option, variable) if process.side == "trainer" else process.env(variable)


def _or_default(process: Process, name: str, default: str) -> dict[str, Any] | None:
    value = process.option(name)
    if value is not None:
        return {**_value(value), "default": False}
    return None if process.hidden else {"value": default, "known": True, "default": True}


def _weight_sync(process: Process) -> list[int]:
    hosts = process.options.get("vllm_server_host") or process.options.get("vllm_server_base_url")
    return [WEIGHT_SYNC + i for i in range(len(hosts.values))] if process.side == "trainer" and hosts else []


def _batch(process: Process, job: Job) -> dict[str, int | None]:
    sums = arithmetic(process, job)
    return {name: getattr(sums, name) for name in sums.__dataclass_fields__}
