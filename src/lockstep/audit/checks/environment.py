"""Variables and options that do not do what their author seems to expect."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.audit import sources as facts
from lockstep.audit.devices import launcher_value
from lockstep.audit.model import Finding, Job, Process, Severity, Value

_LAUNCH = ("MASTER_PORT", "MASTER_ADDR", "NPROC_PER_NODE", "NNODES", "NODE_RANK")
_UNREAD = ("VLLM_DIST_PORT",)
_MEANT = (
    "MASTER_",
    "NPROC_PER_NODE",
    "NNODES",
    "NODE_RANK",
    "CUDA_VISIBLE_DEVICES",
    "VLLM_",
    "NCCL_",
    "TORCH_",
    "PYTORCH_",
    "IMAGE_MAX_",
)
_MOST = 50
"""Variables of one process that are looked at for never reaching it."""
_SERVER_OWN = (
    "vllm_max_model_len",
    "vllm_gpu_memory_utilization",
    "vllm_tensor_parallel_size",
    "vllm_data_parallel_size",
    "vllm_enforce_eager",
    "vllm_max_num_seqs",
    "vllm_use_async_engine",
)


def uses_master(process: Process) -> tuple[bool | None, str]:
    """Whether a process uses MASTER_ADDR and MASTER_PORT of its environment, and how; None where nobody can
    tell."""
    if process.side == "rollout":
        return (
            False,
            "swift rollout starts no torchrun; its data-parallel group meets on a port that it picks itself",
        )
    if process.side == "server":
        return False, "vLLM picks its own ports"
    if process.launcher == {}:
        return (
            True,
            "python starts no torchrun: one rank, which takes MASTER_PORT for its group of one",
        )
    if process.launcher is not None:
        return (
            False,
            f"{process.program.split()[0]} takes --master_addr and --master_port and sets the variables for "
            "its ranks itself",
        )
    if process.env("NPROC_PER_NODE") is not None or process.env("NNODES") is not None:
        return True, "swift passes both to torchrun, as NPROC_PER_NODE or NNODES is set"
    return True, "without NPROC_PER_NODE there is one rank; it takes MASTER_PORT for its group of one"


def check(job: Job) -> Iterator[Finding]:
    for process in job.processes:
        if process.side == "rollout":
            yield from _rollout_settings(process)
        if process.side == "trainer":
            yield from _from_environment(process)
            yield from _server_side_options(process)
        yield from _not_exported(process)
    yield from _never_read(job)


def _rollout_settings(process: Process) -> Iterator[Finding]:
    for name in _LAUNCH:
        setting = process.command.env.get(name)
        if setting is None or setting.how not in ("prefix", "option"):
            continue
        yield Finding(
            f"rollout-{name.lower().replace('_', '-')}",
            Severity.WARNING if name in ("MASTER_PORT", "NPROC_PER_NODE") else Severity.NOTE,
            setting.place,
            f"{name} has no effect on {process.program}",
            f"{name}={setting.value.text[:120]} is set for {process.program}, which does not read it: only "
            "pt, sft, rlhf and infer are "
            "started through torchrun, and the server gives its data-parallel workers a port from "
            "get_open_port() as "
            "VLLM_DP_MASTER_PORT. It neither causes nor cures a hang.",
            (facts.MAIN, facts.ROLLOUT),
            f"Remove {name} from this command.",
        )


def _never_read(job: Job) -> Iterator[Finding]:
    for name in _UNREAD:
        for process in job.side("rollout") + job.side("server"):
            setting = process.command.env.get(name)
            if setting is not None:
                yield Finding(
                    "variable-never-read",
                    Severity.NOTE,
                    setting.place,
                    f"{name} is read by nothing",
                    f"No file of vllm 0.11.0, ms-swift 3.10.3 or trl 0.24.0 reads {name}. vLLM takes its "
                    "ports from VLLM_PORT upwards "
                    "where that is set, else from the system.",
                    (facts.VLLM_ENVIRONMENT,),
                )
                break


def _from_environment(process: Process) -> Iterator[Finding]:
    if launcher_value(process, "nproc_per_node", "NPROC_PER_NODE") is None and process.env("NNODES") is None:
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        setting = process.command.env.get(name)
        if process.launcher is not None or setting is None or not _from_outside(setting.value):
            continue
        yield Finding(
            f"{name.lower().replace('_', '-')}-from-outside",
            Severity.NOTE,
            setting.place,
            f"{name} comes from outside the script",
            f"{name} is {setting.value.text[:120]}. swift passes it to torchrun even when it is empty, and "
            "torchrun then refuses to start. "
            + (
                "An assignment in front of an earlier command does not reach this one."
                if name == "MASTER_ADDR"
                else "On one host it can be left out: torchrun takes 29500."
            ),
            (facts.MAIN, facts.RENDEZVOUS if name == "MASTER_ADDR" else facts.TORCHRUN),
        )


def _from_outside(value: Value) -> bool:
    """Whether a value is one that the script never assigns. What it computes is unknown, but not empty."""
    return any(
        part.origin.startswith(("environment ", "arguments ")) for part in value.parts if not part.known
    ) and not any(part.known for part in value.parts)


def _server_side_options(process: Process) -> Iterator[Finding]:
    if "vllm_server_host" not in process.options and "vllm_server_base_url" not in process.options:
        return
    for name in _SERVER_OWN:
        if name in process.options:
            yield Finding(
                "trainer-option-without-effect",
                Severity.NOTE,
                process.at(name),
                f"--{name} has no effect on a trainer with a rollout server",
                "The engine is the server's: give this option to swift rollout.",
                (facts.RLHF_ARGUMENTS, facts.MIXIN),
            )


def _not_exported(process: Process) -> Iterator[Finding]:
    meant = [
        (name, setting)
        for name, setting in process.command.shell_only.items()
        if name not in process.command.env and name.startswith(_MEANT) and setting.how != "loop"
    ]
    passed = "\0".join(setting.value.text for setting in process.command.env.values()) if meant else ""
    meant = [(name, s) for name, s in meant[:_MOST] if not s.value.text or s.value.text not in passed]
    for name, setting in meant:
        yield Finding(
            "not-exported",
            Severity.WARNING,
            setting.place,
            f"{name} does not reach {process.program}",
            f"{name}={setting.value.text[:120]} is a variable of the shell only: without export, or on a "
            "line of its own before the command, "
            "a program does not get it (unless the environment had it before).",
            (facts.BASH,),
            f"Write export {name}=..., or put it in front of the command on the same line.",
        )
