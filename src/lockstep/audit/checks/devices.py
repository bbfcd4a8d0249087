"""GPUs: who uses which, and whether there are as many ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from lockstep.audit import sources as facts
from lockstep.audit.checks.ports import LOCAL_HOSTS
from lockstep.audit.devices import data_parallel_here, devices, parallel, ranks_here
from lockstep.audit.model import Finding, Job, Place, Process, Severity


def check(job: Job) -> Iterator[Finding]:
    yield from _overlaps(job)
    for process in job.processes:
        if process.side == "trainer":
            yield from _trainer(process)
        elif process.side == "rollout":
            yield from _rollout(process)


def _overlaps(job: Job) -> Iterator[Finding]:
    apart: list[str] = []
    last: Process | None = None
    processes = sorted([*job.processes, *job.unread], key=lambda process: process.order)
    owned = {id(process): devices(process) for process in processes}
    for one, other in combinations(processes, 2):
        if _host(one) != _host(other) or _server_far_away(one) or _server_far_away(other):
            continue
        if not {"trainer", "unread"} & {one.side, other.side} and one.side != other.side:
            continue
        mine, theirs = owned[id(one)], owned[id(other)]
        if mine.used is None or theirs.used is None or (mine.unset and theirs.unset):
            continue
        if not one.command.background and _one_after_the_other(one, other):
            continue
        shared = [device for device in mine.used if device in theirs.used]
        last = other if other.command.env.get("CUDA_VISIBLE_DEVICES") is not None else one
        if not shared:
            apart.append(f"{one.side} {','.join(mine.used)}; {other.side} {','.join(theirs.used)}")
            continue
        yield Finding(
            "gpu-overlap",
            Severity.HAZARD,
            _gpu_place(last),
            f"GPU {', '.join(shared)} is used by both {one.side} and {other.side}",
            f"{one.label} uses {','.join(mine.used)}, {other.label} uses {','.join(theirs.used)}. vLLM "
            "takes 90% of a GPU's memory unless "
            "told otherwise, so one of them runs out of memory; NCCL refuses two ranks of one group on one "
            "GPU, and the weight-sync group "
            "has ranks of both.",
            (facts.TRAINER_ARGUMENTS,),
            "Give each process its own GPUs with CUDA_VISIBLE_DEVICES.",
        )
        apart = []
        return
    if apart and last is not None:
        yield Finding(
            "gpus-apart",
            Severity.OK,
            _gpu_place(last),
            "no GPU is used twice",
            f"{' | '.join(apart)}.",
        )


def _one_after_the_other(one: Process, other: Process) -> bool:
    """Whether the first, which is in the foreground, ends before the second begins: a server does not."""
    return one.side == "unread" or (one.side == "trainer" and other.side in ("trainer", "unread"))


def _server_far_away(process: Process) -> bool:
    """Whether a trainer's server is on another host, so that the GPUs of the two are others."""
    hosts = process.options.get("vllm_server_host")
    if process.side not in ("trainer", "unread") or hosts is None:
        return False
    return all(word.value.known and word.text not in LOCAL_HOSTS for word in hosts.values)


def _gpu_place(process: Process) -> Place:
    setting = devices(process).setting
    return setting.place if setting else process.place


def _host(process: Process) -> str:
    """Containers share their host's GPUs; job steps and remote hosts are taken for hosts of their own."""
    return "" if process.command.machine.startswith("container") else process.command.machine


def _trainer(process: Process) -> Iterator[Finding]:
    found, ranks = devices(process), ranks_here(process)
    place = process.at("NPROC_PER_NODE")
    if found.visible is None or ranks is None:
        if found.setting is not None and found.visible is None:
            yield _unknown(process, found.setting.value.text)
        return
    count = len(found.visible)
    if ranks == count:
        yield Finding(
            "ranks-match-gpus",
            Severity.OK,
            place,
            f"{ranks} ranks on {count} GPUs",
            "There are as many ranks as visible GPUs.",
        )
    elif ranks > count:
        yield Finding(
            "ranks-exceed-gpus",
            Severity.HAZARD,
            place,
            f"{ranks} ranks on {count} GPUs",
            "Some ranks have no GPU: the trainer fails at start-up.",
            (facts.DEVICE_MAP,),
            "Make NPROC_PER_NODE equal to the number of visible GPUs.",
        )
    else:
        whole = count % ranks == 0
        why = (
            "ms-swift would spread each rank's model over several GPUs (device_map), which GRPO with vLLM "
            "refuses."
            if whole
            else "ms-swift asserts that the number of GPUs is a multiple of the number of ranks."
        )
        grpo = "rlhf" in process.program
        yield Finding(
            "ranks-below-gpus",
            Severity.HAZARD if grpo or not whole else Severity.WARNING,
            place,
            f"{ranks} rank{'s' if ranks > 1 else ''} on {count} GPUs",
            f"{_why_fewer(process)}: {why}",
            (facts.DEVICE_MAP, facts.RLHF_ARGUMENTS),
            f"Start it with swift {_subcommand(process)}, which starts torchrun, or with torchrun itself."
            if process.launcher == {}
            else "Start as many ranks as there are visible GPUs."
            if process.launcher is not None
            else "Make NPROC_PER_NODE equal to the number of visible GPUs.",
        )


def _subcommand(process: Process) -> str:
    return process.program.rsplit("/", 1)[-1].removesuffix(".py")


def _why_fewer(process: Process) -> str:
    """Why a trainer has fewer ranks than GPUs."""
    if process.launcher == {}:
        set_ = "NPROC_PER_NODE is not read" if process.env("NPROC_PER_NODE") is not None else "one rank"
        return f"started by python itself there is no torchrun ({set_})"
    if process.launcher is not None:
        return f"{process.program.split()[0]} is told to start fewer"
    return f"NPROC_PER_NODE {'is not set' if process.env('NPROC_PER_NODE') is None else 'is lower'}"


def _rollout(process: Process) -> Iterator[Finding]:
    found = devices(process)
    tensor, data = parallel(process)[0], data_parallel_here(process)
    if found.visible is None or tensor is None or data is None:
        if found.setting is not None and found.visible is None:
            yield _unknown(process, found.setting.value.text)
        return
    count, need = len(found.visible), tensor * data
    place = _gpu_place(process)
    if count == need:
        yield Finding(
            "server-gpus",
            Severity.OK,
            place,
            f"{process.program}: {need} engine ranks on {count} GPUs",
            f"Tensor parallel size {tensor} times data parallel size {data} equals the number of visible "
            "GPUs.",
        )
    elif count < need:
        yield Finding(
            "server-gpus-missing",
            Severity.HAZARD,
            place,
            f"{need} engine ranks on {count} GPUs",
            f"Tensor parallel size {tensor} times data parallel size {data} needs {need}; ms-swift refuses "
            "to start.",
            (facts.DEPLOY_ARGUMENTS,),
        )
    else:
        yield Finding(
            "server-gpus-idle",
            Severity.WARNING,
            place,
            f"only {need} of the server's {count} GPUs are used",
            f"Tensor parallel size {tensor} times data parallel size {data} uses the first {need}.",
            (facts.DEPLOY_ARGUMENTS,),
        )


def _unknown(process: Process, text: str) -> Finding:
    return Finding(
        "gpus-unknown",
        Severity.NOTE,
        process.at("CUDA_VISIBLE_DEVICES"),
        f"the {process.side}'s GPUs cannot be told from the script",
        f"CUDA_VISIBLE_DEVICES is {text[:120]}; overlaps were not looked for.",
    )
