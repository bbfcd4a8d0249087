# ruff: noqa: E501 (a table: one row per text)
"""All other telling lines: gloo, the store, vLLM, elastic, DeepSpeed, memory, weight sync. One table, one row
per text.

Wording from torch 2.8.0 (gloo, TCPStore.cpp, socket.cpp, distributed/elastic), vLLM 0.11.0
(v1/engine/core_client.py, v1/engine/core.py, distributed/device_communicators/shm_broadcast.py), DeepSpeed
0.17.6 (launcher/launch.py), transformers 4.57.1, ms-swift 3.10.3 (trainers/rlhf_trainer/vllm_client.py),
slurmstepd and the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lockstep.diagnose.events import Mark, MarkKind
from lockstep.diagnose.log_prefixes import origin, quote

_Row = tuple[MarkKind, str, re.Pattern[str]]


def _row(kind: MarkKind, literal: str, pattern: str) -> _Row:
    return kind, literal, re.compile(pattern)


# Groups: `d` the detail, `n` the number, `t` the total, `r` the global rank that the line is about.
_FAILURES: tuple[_Row, ...] = (
    _row("gloo closed", "gloo/transport/tcp", r"\] (?P<d>Connection closed by peer|Read error)"),
    _row("gloo closed", "gloo/transport/tcp", r"(?P<d>Connection reset by peer|Broken pipe)"),
    _row("gloo timeout", "gloo/transport/tcp", r"Timed out waiting (?P<n>\d{1,12})ms for (?P<d>recv|send) operation"),
    _row("gloo timeout", "gloo/transport/tcp", r"(?P<d>Application timeout caused pair closure)"),
    _row("gloo connect", "connectFullMesh", r"(?P<d>Gloo connectFullMesh failed)"),
    _row("gloo connect", "gloo/transport/tcp", r"(?P<d>[Cc]onnect timeout)"),
    _row("store timeout", "wait timeout after", r"wait timeout after (?P<n>\d{1,12})ms, keys: (?P<d>\S{1,200})"),
    _row("store timeout", "waiting for clients", r"Timed out after (?P<n>\d{1,9}) seconds waiting for clients\. (?P<d>\d+/\d+) clients"),
    _row("connect timeout", "client socket has timed out", r"timed out after (?P<n>\d{1,12})ms while trying to connect to (?P<d>\([^)]{1,200}\))"),
    _row("unique id", "ncclUniqueId", r"\[(?P<r>\d{1,6})\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[0\](?P<d>)"),
    _row("mismatch", "Detected mismatch between collectives", r"Detected mismatch between collectives on ranks\. (?P<d>.{0,200})"),
    _row("nccl remote", "remote process exited", r"(?P<d>remote process exited or there was a network error)"),
    _row("engine died", "died unexpectedly", r"(?P<d>(?:Engine core|Worker) proc \S{1,80}) died unexpectedly"),
    _row("engine fatal", "EngineCore encountered", r"(?P<d>EngineCore encountered (?:a fatal error|an issue))"),
    _row("engine fatal", "EngineCore failed", r"(?P<d>EngineCore failed to start)"),
    _row("shm wait", "shared memory broadcast block", r"(?P<d>No available shared memory broadcast block found) in (?P<n>\d{1,9}) second"),
    _row("child exit", "exitcode", r"exitcode\s{0,4}: ?(?P<n>-?\d{1,6})\)? (?P<d>local_rank: \d{1,6} \(pid: \d{1,9}\)|\(pid: \d{1,9}\))"),
    _row("child exit", "exits with return code", r"exits with return code = (?P<n>-?\d{1,6})(?P<d>)"),
    _row("gpu memory", "out of memory", r"(?P<d>CUDA out of memory|CUDA error: out of memory|NCCL.{0,40}out of memory)"),
    _row("host memory", "Out of memory", r"(?P<d>Out of memory: Killed process \d{1,9})"),
    _row("host memory", "slurmstepd: error", r"(?P<d>Detected \d{1,9} oom[_-]kill event)"),
    _row("time limit", "slurmstepd: error", r"CANCELLED AT \S{1,40} (?P<d>DUE TO TIME LIMIT|DUE TO PREEMPTION|DUE TO NODE FAILURE)"),
    _row("sync error", "requests.exceptions", r"requests\.exceptions\.\w{1,40}: .{0,300}?(?P<d>/(?:init_communicator|update_\w{1,40}|close_communicator)/)"),
    _row("sync error", "Multiple errors", r"Multiple errors: .{0,300}?(?P<d>Server \d{1,4} (?:init|update|update adapter|update flattened params) failed)"),
    _row("sync error", "Communicator not initialized", r"(?P<d>Communicator not initialized)"),
    _row("sync error", "NCCL error", r"^\S{0,80}\s?RuntimeError: (?P<d>NCCL error: .{0,120})"),
)  # fmt: skip

_CONTEXT: tuple[_Row, ...] = (
    _row("version", "LLM engine (v", r"V1 LLM engine \(v(?P<d>[\w.+-]{1,40})\)"),
    _row("version", "vllm==", r"\bvllm==(?P<d>[\w.+-]{1,40})"),
    _row("version", "vLLM API server version", r"vLLM API server version (?P<d>[\w.+-]{1,40})"),
    _row("engine config", "LLM engine (v", r"(?P<d>tensor_parallel_size=\d+, pipeline_parallel_size=\d+(?:, data_parallel_size=\d+)?)"),
    _row("coordinator", "DP Coordinator", r"(?P<d>Started DP Coordinator process) \(PID: (?P<n>\d+)\)"),
    _row("coordinator", "DP_Coordinator", r"(?P<d>VLLM_DP_Coordinator|DP_Coordinator pid)"),
    _row("server", "piServer", r"\((?P<d>Api_?Server(?:_\d+)?|APIServer) pid=\d+\)"),
    _row("server", "APIServer", r"\((?P<d>APIServer) pid=\d+\)"),
    _row("saving", "Saving model checkpoint to", r"Saving model checkpoint to (?P<d>\S{1,300})"),
    _row("saved", "aved", r"(?P<d>\[Torch\] Saved |model checkpoint saved|Model weights saved in)"),
    _row("preparing", "Map", r"\b(?P<d>Map(?: \(num_proc=\d+\))?):.{0,20}?\d+%\|[^|]{0,200}\| (?P<n>\d+)/(?P<t>\d+)"),
    _row("preparing", "Loading checkpoint shards", r"(?P<d>Loading checkpoint shards):.{0,20}?\|[^|]{0,200}\| (?P<n>\d+)/(?P<t>\d+)"),
    _row("storage", "nfs: server", r"(?P<d>nfs: server \S{1,100} not responding)"),
    _row("storage", "Stale file handle", r"(?P<d>Stale file handle)"),
    _row("storage", "Input/output error", r"(?P<d>Input/output error)"),
    _row("storage", "blocked for more than", r"task (?P<d>\S{1,60}) blocked for more than (?P<n>\d+) seconds"),
    _row("multimodal", "VL", r"(?P<d>Qwen\d?(?:_\d)?_?(?:\.\d)?-?_?VL\w{0,40}|InternVL\w{0,40})"),
    _row("multimodal", "vl", r"(?P<d>qwen\d(?:[._]\d)?_vl\w{0,30}|internvl\w{0,30})"),
    _row("multimodal", "pixel_values", r"(?P<d>pixel_values)"),
    _row("progress", "%|", r"(?:(?P<d>[A-Za-z][\w ()]{0,40}): +)?\d{1,3}%\|[^|]{0,300}\| ?(?P<n>\d{1,12})/(?P<t>\d{1,12}) \["),
)  # fmt: skip


def failures(text: str, file: str, line: int, collector: float | None) -> Iterator[Mark]:
    """The failures that a line tells of."""
    return _read(_FAILURES, text, file, line, collector)


def context(text: str, file: str, line: int, collector: float | None) -> Iterator[Mark]:
    """What a line says about what the job was doing."""
    return _read(_CONTEXT, text, file, line, collector)


def _read(rows: tuple[_Row, ...], text: str, file: str, line: int, collector: float | None) -> Iterator[Mark]:
    seen: set[MarkKind] = set()
    for kind, literal, pattern in rows:
        if literal not in text or kind in seen or not (found := pattern.search(text)):
            continue
        seen.add(kind)
        parts = found.groupdict()
        who = origin(text[: found.start()], collector)
        if parts.get("r"):
            who = type(who)(int(parts["r"]), who.process, who.pid, who.host, who.when)
        yield Mark(
            file,
            line,
            quote(text),
            who,
            kind=kind,
            detail=parts.get("d") or "",
            number=int(parts["n"]) if parts.get("n") else None,
            total=int(parts["t"]) if parts.get("t") else None,
        )
