"""Which GPUs a process uses and how many ranks it has, from its environment and its options."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.audit.model import Process, Setting, Value
from lockstep.audit.versions import at_least

TRL_ONLINE = "1.11.0"
"""The first trl release whose vllm-serve starts `vllm serve`, with its coordinator."""

_MAX_LIST = 4096
"""Characters of a list of GPUs; a longer one names none that exist."""


@dataclass(frozen=True, slots=True)
class Devices:
    """`visible`: CUDA_VISIBLE_DEVICES, None where it is not set or cannot be told. `used`: those of them that
    get a rank."""

    setting: Setting | None
    visible: tuple[str, ...] | None
    used: tuple[str, ...] | None

    @property
    def unset(self) -> bool:
        return self.setting is None


def devices(process: Process) -> Devices:
    """The devices of one process. Without CUDA_VISIBLE_DEVICES a program takes the first of the host's."""
    setting = process.command.env.get("CUDA_VISIBLE_DEVICES")
    need = ranks_here(process)
    given = process.command.env.get("NVIDIA_VISIBLE_DEVICES")
    of_container = _listed(given.value) if given is not None and given.value.text not in ("all", "") else None
    if setting is None and of_container is not None:
        return Devices(given, of_container, of_container if need is None else of_container[:need])
    if setting is None:
        return Devices(
            None, None, tuple(str(i) for i in range(need)) if need is not None and need <= 4096 else None
        )
    visible = _listed(setting.value)
    if visible is None:
        return Devices(setting, None, None)
    if of_container is not None and all(part.isdigit() and int(part) < len(of_container) for part in visible):
        # Inside a container the GPUs it was given are counted from 0.
        visible = tuple(of_container[int(part)] for part in visible)
    return Devices(setting, visible, visible if need is None else visible[:need])


def _listed(value: Value) -> tuple[str, ...] | None:
    if not value.known or len(value.text) > _MAX_LIST:
        return None
    return tuple(part.strip() for part in value.text.split(",") if part.strip())


def ranks_here(process: Process) -> int | None:
    """Ranks that a process has on this host; None where that cannot be told."""
    if process.side == "unread":
        return None
    if process.side == "trainer":
        value = launcher_value(process, "nproc_per_node", "NPROC_PER_NODE")
        if value is None:
            # accelerate and deepspeed decide by a file or by the GPUs they find, Ray by its own settings.
            elsewhere = process.program.startswith(("accelerate", "deepspeed")) or process.flag("use_ray")
            return None if elsewhere or (process.hidden and process.program.startswith("megatron")) else 1
        return value.number()
    tensor, data = parallel(process)[0], data_parallel_here(process)
    return None if tensor is None or data is None else tensor * data


def world_size(process: Process) -> int | None:
    """Ranks of a trainer on all hosts."""
    here = ranks_here(process)
    nodes = launcher_value(process, "nnodes", "NNODES")
    count = 1 if nodes is None else nodes.number()
    return None if here is None or count is None else here * count


def launcher_value(process: Process, option: str, variable: str) -> Value | None:
    """What the launcher of a trainer gets: by option where the script calls torchrun, by variable through
    `swift`."""
    if process.launcher is None:
        return process.env(variable)
    names = [
        option,
        *(
            {
                "nproc_per_node": ["num_processes", "num_gpus"],
                "nnodes": ["num_machines", "num_nodes"],
                "node_rank": ["machine_rank"],
                "master_addr": ["main_process_ip"],
                "master_port": ["main_process_port"],
            }.get(option, [])
        ),
    ]
    for name in names:
        if name in process.launcher and process.launcher[name].values:
            return process.launcher[name].values[0].value
    return process.env(f"PET_{variable}")


def parallel(process: Process) -> tuple[int | None, int | None]:
    """Tensor and data parallel size of a rollout or server."""
    names = {
        "swift": ("vllm_tensor_parallel_size", "vllm_data_parallel_size"),
        "trl": ("tensor_parallel_size", "data_parallel_size"),
        "vllm": ("tensor_parallel_size", "data_parallel_size"),
    }[
        process.program.split("/")[0].split()[0]
        if process.program.split("/")[0].split()[0] in ("trl", "vllm")
        else "swift"
    ]
    # ms-swift had the longer names without the prefix before 3.7.0.
    other = {
        "tensor_parallel_size": "tp",
        "data_parallel_size": "dp",
        "vllm_tensor_parallel_size": "tensor_parallel_size",
        "vllm_data_parallel_size": "data_parallel_size",
    }
    given = [other[name] if name not in process.options else name for name in names]
    tensor, data = (process.number(name, 1) for name in given)
    return tensor, data


def data_parallel_here(process: Process) -> int | None:
    """Data-parallel ranks that a rollout or server has on this host: all, unless it is told how many."""
    for name in ("data_parallel_size_local", "dpl"):
        if name in process.options:
            return process.number(name, 1)
    return parallel(process)[1]


def asynchronous(process: Process) -> bool | None:
    """Whether a rollout server uses vLLM's asynchronous engine; None where that cannot be told."""
    if process.program == "trl vllm-serve":
        trl = process.versions.get("trl")
        return trl is not None and bool(at_least(trl, TRL_ONLINE))
    for name in ("vllm_use_async_engine", "use_async_engine"):
        if name in process.options:
            return process.flag(name)
    if process.hidden:
        return None
    return "multi_turn_scheduler" in process.options
