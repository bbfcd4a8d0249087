# ruff: noqa: E501 (a table of texts)
"""What to do, chosen by what happened. The remedies of a cause follow what the failure at hand asks for."""

from __future__ import annotations

import re

from lockstep.causes import CAUSES
from lockstep.diagnose.causes import Case
from lockstep.diagnose.events import Mark
from lockstep.diagnose.model import CauseId
from lockstep.diagnose.sentences import members
from lockstep.remedies.model import Remedy

_NOTHING = "nothing"
_RECORD = Remedy(
    "record collectives",
    "start every rank with TORCH_FR_BUFFER_SIZE=2000 (older torch: TORCH_NCCL_TRACE_BUFFER_SIZE=2000), "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/rank_ (older: "
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE), a folder that exists; after the next timeout: lockstep dumps /shared/dumps",
    "some memory; it does not end the hang, but the dumps say which rank did what",
)
_RECORD_LATER = Remedy(
    _RECORD.name, f"this torch has no recorder; with torch 2.2 or later: {_RECORD.how}", _RECORD.gives_up
)
_RECORD_GLOO = Remedy(
    "record collectives",
    "gloo has no watchdog that writes dumps. Start every rank with TORCH_FR_BUFFER_SIZE=2000 (torch 2.8 or later) "
    "and write them yourself on every rank, where the timeout is caught and on SIGTERM: pathlib.Path(f'/shared/dumps/rank_{rank}').write_bytes("
    "torch._C._distributed_c10d._dump_fr_trace()); then: lockstep dumps /shared/dumps",
    "some memory and two lines of code",
)
_DMESG = Remedy(
    "look for the killer",
    "dmesg -T | grep -i -E 'killed process|oom' on the host, memory.events of the cgroup, sacct or kubectl describe",
    _NOTHING,
)
_STACK = Remedy(
    "the stack of whoever is missing",
    "its own log first; next time, while it hangs: py-spy dump --pid PID on that rank",
    _NOTHING,
)
_TRANSPORT = Remedy(
    "test the transport",
    "NCCL_DEBUG=INFO and all_reduce_perf of nccl-tests over the same hosts; the named peer's log and links "
    "(ibstat, ip link)",
    _NOTHING,
)
_READ = Remedy("read the traceback", "the quoted error, and the lines above it in the file", _NOTHING)
_PEER_LOG = Remedy(
    "the peer's log", "the log of the rank or host that is named: it ended or stood still first", _NOTHING
)
_PORT = Remedy(
    "a free port",
    "find who has it (ss -ltnp), end what is left of an earlier run, or give this job ports of its own "
    "(MASTER_PORT, and the weight sync's port: 51216 by default)",
    _NOTHING,
)

_LIVE = Remedy(
    "the stacks while it hangs",
    "py-spy dump --pid PID of each worker, as its user or as root; py-spy must be in the image",
    _NOTHING,
)
_HCCL = Remedy(
    "look at the rank that is waited for",
    "the logs of the other ranks (plog under ~/ascend/log): who failed first or never came; its link by hccn_tool -i "
    "DEVICE -link -g and -net_health -g; HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT if it was only late",
    _NOTHING,
)
_PREPARE = Remedy(
    "prepare the data before",
    "prepare and cache the dataset in a run of its own, or give the group a longer timeout (ddp_timeout)",
    "a longer wait before a real hang is seen",
)
_GIL = Remedy(
    "look at who holds the GIL",
    "while it hangs: py-spy dump --native --pid PID of that rank; the thread that is active is the one",
    _NOTHING,
)

_AMD = re.compile(r"\bHIP\b|HSA_STATUS|(?:fault|Exception) by GPU node|GPU core dump")
_AMD_GPU = Remedy(
    "look where it failed",
    "dmesg -T | grep -i amdgpu and rocm-smi --showrasinfo on that host; again with AMD_SERIALIZE_KERNEL=3 and "
    "HIP_LAUNCH_BLOCKING=1, so that the failing kernel is the one that the traceback names",
    "speed",
)

_BY_KIND: dict[str, tuple[Remedy, ...]] = {
    "host memory": (
        _DMESG,
        Remedy("less host memory", "fewer data loader workers, no CPU offload, a higher memory limit", "speed"),
    ),
    "killed": (_DMESG,),
    "no resources": (
        Remedy(
            "more threads or processes",
            "ulimit -u, pids.max of the container's cgroup; OMP_NUM_THREADS and fewer workers need fewer",
            _NOTHING,
        ),
    ),
    "gpu fault": (
        Remedy(
            "test the GPU",
            "dmesg -T | grep -i xid, nvidia-smi -q -d ECC, dcgmi diag -r 3 on that host; leave the host out until then",
            "a host",
        ),
    ),
    "cuda error": (
        Remedy(
            "look where it failed",
            "dmesg -T | grep -i xid on that host; again with CUDA_LAUNCH_BLOCKING=1, which names the kernel",
            "speed",
        ),
    ),
    "loader died": (
        Remedy(
            "look at the data loader",
            "num_workers=0 shows its own error; dmesg for its memory, df /dev/shm for shared memory (--shm-size)",
            "speed",
        ),
    ),
    "ended from outside": (
        Remedy(
            "find who ended it",
            "the scheduler's record (sacct, kubectl describe, bjobs -l), dmesg for a memory killer; a lost ssh session "
            "sends SIGHUP: nohup, tmux or setsid",
            _NOTHING,
        ),
    ),
    "time limit": (Remedy("ask for more time", "the scheduler's limit, or checkpoints within it", "a place in the queue"),),
    "disk full": (Remedy("make room", "df -h and df -i of the named path, and of /tmp and /dev/shm", _NOTHING),),
    "port taken": (_PORT,),
    "actor died": (
        Remedy(
            "the dead worker's own files",
            "/tmp/ray/session_latest/logs/*PID* on its host (ray logs), dmesg there; Ray's list of possible reasons is "
            "no evidence for any of them",
            _NOTHING,
        ),
    ),
    "gpu memory": (
        Remedy("less memory per rank", "smaller batch, gradient checkpointing, more sharding", "speed"),
        Remedy(
            "leave room on the GPU",
            "nvidia-smi for other processes on it; where an inference engine shares it, a lower "
            "gpu_memory_utilization",
            "speed",
        ),
    ),
    "nccl error": (_PEER_LOG, _TRANSPORT),
    "nccl remote": (_PEER_LOG,),
    "gloo closed": (_PEER_LOG,),
    "store closed": (_PEER_LOG,),
    "nccl peer": (_PEER_LOG, _TRANSPORT),
    "hccl error": (_HCCL,),
    "hccl timeout": (_HCCL,),
    "hccl heartbeat": (_HCCL,),
    "kv transfer": (_PEER_LOG, _LIVE),
    "other watchdog": (_LIVE,),
    "exception": (_READ,),
    "traceback": (_READ,),
    "crash": (Remedy("a native stack", "the core file in gdb, or PYTHONFAULTHANDLER=1 next time", _NOTHING),),
    "gloo timeout": (_STACK,),
    "barrier": (_STACK,),
    "store barrier": (_STACK,),
    "rpc timeout": (
        Remedy(
            "the stack of the worker that did not answer",
            "while it hangs: py-spy dump --pid PID of each worker process of the engine; its collectives by recording",
            _NOTHING,
        ),
    ),
    "shm wait": (
        Remedy("look at the workers", "py-spy dump --pid PID of each worker: loading, compiling, or in a collective", _NOTHING),
    ),
    "no answer": (_STACK,),
    "watchdog silent": (_STACK,),
    "gil": (_GIL,),
    "watchdog stuck": (
        Remedy(
            "look at the rank whose watchdog stands",
            "py-spy dump --native --pid PID: who holds the GIL or is in a CUDA call; dmesg for Xid",
            _NOTHING,
        ),
    ),
}  # fmt: skip


_RAY = re.compile(
    r"node running low on memory|memory pressure \(OOM\)|Memory on the node|too many heartbeats"
)
_OLD_TORCH = re.compile(r"(?:^|[ )])\[E ProcessGroupNCCL\.cpp")  # until 2.1: no rank in front, no recorder


def _ray_node(case: Case) -> Remedy:
    node = next((mark.peer for mark in case.picture.of("host memory", "node died") if mark.peer), "NODE")
    return Remedy(
        "that node's raylet log",
        f"ray logs raylet.out -ip {node}; its memory and network at that time. Ray ends a worker itself at "
        "RAY_memory_usage_threshold",
        _NOTHING,
    )


def advice(name: CauseId, case: Case) -> tuple[Remedy, ...]:
    """Return what to do, first things first."""
    mark = _at_hand(name, case)
    chosen = list(_BY_KIND.get(mark.kind, ())) if mark else []
    if mark is not None and mark.kind in ("gpu fault", "cuda error") and _AMD.search(mark.text):
        chosen = [_AMD_GPU]
    if mark is not None and mark.kind in ("host memory", "node died") and _RAY.search(mark.text):
        chosen = [_ray_node(case), *(remedy for remedy in chosen if remedy is not _DMESG)]
    if name == "unknown":
        chosen = [*_for_a_wait(case), *chosen]
        if case.picture.waits or case.picture.role("warning") or not chosen:
            gloo = case.group is None and bool(case.picture.of("gloo timeout", "gloo closed", "gloo pair"))
            if hccl := case.picture.of("hccl timeout", "hccl error", "hccl heartbeat"):
                chosen = [_HCCL, *(remedy for remedy in chosen if remedy not in (_PEER_LOG, _STACK))]
            elif any(_OLD_TORCH.search(timeout.text) for timeout in case.picture.timeouts):
                chosen += [_LIVE, _TRANSPORT, _RECORD_LATER]
            if not hccl and _RECORD_LATER not in chosen:
                chosen.append(_RECORD_GLOO if gloo else _RECORD)
    elif name == "out-of-memory-first":
        chosen += CAUSES[name].remedies[1:]
    elif not (mark is not None and mark.kind == "port taken" and name == "never-connected"):
        chosen += CAUSES[name].remedies
    found = {remedy.name: remedy for remedy in chosen}
    if _RECORD.name in found and found[_RECORD.name] not in (_RECORD_GLOO, _RECORD_LATER):
        found[_RECORD.name] = _RECORD  # with what it takes to carry it out
    return tuple(found.values())


def _at_hand(name: CauseId, case: Case) -> Mark | None:
    """Return the failure that the answer is about."""
    picture = case.picture
    if name in ("out-of-memory-first", "rank-died", "weight-sync-interrupted", "never-connected"):
        kinds = {
            "out-of-memory-first": ("gpu memory", "host memory"),
            "weight-sync-interrupted": ("port taken", "sync error", "nccl error", "hccl error"),
            "never-connected": ("port taken",),
        }.get(name)
        marks = case.earlier(picture.of(*kinds) if kinds else picture.role("end"))
        return next((mark for mark in marks if mark.kind != "child exit"), marks[0] if marks else None)
    return picture.first if isinstance(picture.first, Mark) else None


def _for_a_wait(case: Case) -> list[Remedy]:
    found: list[Remedy] = []
    if over := case.earlier(case.picture.of("over")):
        found.append(
            Remedy(
                "check whether all was done",
                f"your training had finished (line {over[-1].line}): what timed out was the end. Is the last checkpoint "
                "there? Then destroy_process_group() on all ranks before they exit",
                _NOTHING,
            )
        )
    begun = [m for m in case.earlier(case.picture.of("preparing")) if m.total and m.number != m.total]
    if begun and case.picture.waits:
        found.append(_PREPARE)
    if case.picture.of("gil"):
        found.append(_GIL)
    missing = case.absent or case.not_seen
    if case.group is not None and missing:
        found.append(
            Remedy(
                f"the log and the stack of {members(case, missing)}",
                "what it did last; next time, while it hangs: py-spy dump --pid PID",
                _NOTHING,
            )
        )
    return found
