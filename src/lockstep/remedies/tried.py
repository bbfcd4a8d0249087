"""Every cure that people try against the hang of the rollout's data-parallel ranks, in the order in which to
try them.

What became of the job with each is in docs/remedies.md, which `lockstep remedies` writes from runs.
"""

from __future__ import annotations

from lockstep.remedies.model import Change, Tried

AS_SHIPPED = "as shipped"

_THROUGH = "the job comes through with a late rank (on a CPU, docs/remedies.md)"
_HANGS = "the job hangs all the same (on a CPU, docs/remedies.md)"

_EAGER = "the job runs eager on a CPU anyway: no other run than as shipped, only one more"
_CACHE = "prefix caching is off on a CPU anyway: no other run than as shipped, only one more"
_PORTS = "every run of the table has ports of its own; this one has others than as shipped"

TRIED: tuple[Tried, ...] = (
    Tried(AS_SHIPPED, "nothing", "nothing", kind="none", helps=False, measured=_HANGS),
    Tried(
        "independent ranks",
        "swift rollout ... --external_plugins independent_ranks.py",
        "nothing for a dense model; not for expert parallelism",
        kind="plugin",
        experts=False,
        file="independent_ranks.py",
        measured=_THROUGH,
    ),
    Tried(
        "open wave",
        "swift rollout ... --external_plugins open_wave.py",
        "dummy steps while a worker adds requests; keeps the lockstep that expert parallelism needs",
        kind="plugin",
        file="open_wave.py",
        measured=_THROUGH,
    ),
    Tried(
        "two servers",
        "a swift rollout on each GPU; --vllm_server_host H H --vllm_server_port P1 P2 on the trainer's line",
        "one address for all; each server has its own HTTP and weight-sync port and process",
        change=Change(servers=True),
        measured=_THROUGH,
    ),
    Tried(
        "tensor parallel",
        "--vllm_data_parallel_size 1 --vllm_tensor_parallel_size N",
        "throughput: every token is an all-reduce between the GPUs; the sizes must divide the model's heads",
        change=Change(tensor_parallel=True),
        measured=_THROUGH,
    ),
    Tried(
        "async engine",
        "--vllm_use_async_engine true",
        "another code path for requests: one worker for all ranks, multi-turn plugins may need changes",
        change=Change(rollout={"vllm_use_async_engine": True}),
        measured=_THROUGH,
    ),
    Tried(
        "no engine process",
        "VLLM_ENABLE_V1_MULTIPROCESSING=0",
        "the overlap of adding requests and stepping; one more all-reduce per step; a worker whose call "
        "raises may still leave its peers waiting (read in the code, not measured)",
        change=Change(rollout_env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
        measured=_THROUGH,
    ),
    Tried(
        "enforce eager",
        "--vllm_enforce_eager true",
        "CUDA graphs",
        change=Change(rollout={"vllm_enforce_eager": True}),
        helps=False,
        note=_EAGER,
        measured=_HANGS,
    ),
    Tried(
        "cpu dp sync",
        "VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION=1",
        "some speed: the all-reduce of every step goes over gloo",
        change=Change(rollout_env={"VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION": "1"}),
        helps=False,
        measured=_HANGS,
    ),
    Tried(
        "longer timeout",
        "--ddp_timeout 7200",
        "hours: the hang is noticed later",
        change=Change(trainer={"ddp_timeout": 7200}),
        helps=False,
        measured=_HANGS,
    ),
    Tried(
        "other ports", "another MASTER_PORT and --port", "nothing", helps=False, note=_PORTS, measured=_HANGS
    ),
    Tried(
        "prefix caching off",
        "--vllm_enable_prefix_caching false",
        "the prompt's share of the work, for each further completion of the same prompt",
        change=Change(rollout={"vllm_enable_prefix_caching": False}),
        helps=False,
        note=_CACHE,
        measured=_HANGS,
    ),
)
"""The first is no remedy: what the others are measured against."""
