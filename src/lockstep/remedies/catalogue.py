"""Remedies per cause, in the order in which to try them, and what each costs. Data only."""

from __future__ import annotations

from lockstep.remedies.model import NOT_MEASURED, Remedy
from lockstep.remedies.tried import TRIED

__all__ = ["NOT_MEASURED", "REMEDIES", "Remedy"]

_RESTART = Remedy(
    "restart from the last checkpoint",
    "start the job again with --resume_from_checkpoint",
    "the steps since the checkpoint; the cause stays",
)
_FLIGHT_RECORDER = Remedy(
    "record collectives",
    "TORCH_FR_BUFFER_SIZE=2000 (older: TORCH_NCCL_TRACE_BUFFER_SIZE), TORCH_NCCL_DUMP_ON_TIMEOUT=1",
    "some memory; cures nothing, but the next timeout says which rank did what",
)

REMEDIES: dict[str, tuple[Remedy, ...]] = {
    "offline-wave-race": (
        *(remedy for remedy in TRIED if remedy.helps),
        Remedy(
            "later ms-swift",
            "4.2.1 or later: its data-parallel ranks are engines apart; it wants trl 0.26 or later",
            "the pinned ms-swift and trl; no ranks in lockstep, as expert parallelism needs them",
            "comes through the late rank with vLLM 0.11.0 (docs/bisect.md)",
            experts=False,
            since=("ms-swift", "4.2.1"),
        ),
    ),
    "online-dense-dp-out-of-step": (
        Remedy("later vLLM", "a release in which dense models do not step together", "the pinned stack"),
        Remedy("one server per GPU", "N servers instead of --data-parallel-size N", "one address for all"),
    ),
    "mixed-batch": (
        Remedy(
            "one kind per batch",
            "give every sample an image (a blank one will do), or sort batches by kind",
            "some data preparation",
        ),
        Remedy(
            "touch all parameters on every rank",
            "run the vision tower on a dummy input when the batch has no image",
            "a small forward pass per step",
        ),
    ),
    "rank-dependent-control-flow": (
        Remedy(
            "same path on all ranks",
            "decide by a value that all ranks share (broadcast it), not by local data or `if rank == 0`",
            "one small collective",
        ),
        _FLIGHT_RECORDER,
    ),
    "rank-died": (
        Remedy("read the dead rank's own log", "its traceback, or dmesg for a signal", "nothing"),
        _RESTART,
    ),
    "never-connected": (
        Remedy(
            "same network for all ranks",
            "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, open ports, a MASTER_ADDR that all can reach",
            "nothing",
        ),
        Remedy(
            "no shared port", "free MASTER_PORT and weight-sync port (51216) per job on a host", "nothing"
        ),
    ),
    "slow-storage-or-rank": (
        Remedy("longer timeout", "--ddp_timeout SECONDS", "a real hang is noticed later"),
        Remedy(
            "work before training",
            "tokenise and cache the data set first; save to local disk, copy later",
            "a step more",
        ),
    ),
    "weight-sync-interrupted": (
        Remedy(
            "keep the rollout server alive",
            "restart server and trainer together; look at the server's log first",
            "nothing",
        ),
        Remedy("one job per host", "ms-swift 3.10.3 has no argument for the weight-sync port, 51216", "room"),
    ),
    "out-of-memory-first": (
        Remedy(
            "less memory per rank",
            "smaller batch, gradient checkpointing, --vllm_gpu_memory_utilization lower",
            "speed",
        ),
        _RESTART,
    ),
    "unknown": (_FLIGHT_RECORDER,),
}
