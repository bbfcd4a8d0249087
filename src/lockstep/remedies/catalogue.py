"""Remedies of every cause but one, with what each costs. Those of the offline wave race are in `tried`, since
they are tried on the job. `lockstep.causes` says which cause has which, in the order in which to try them."""

from __future__ import annotations

from lockstep.remedies.model import Remedy

RESTART = Remedy(
    "restart from the last checkpoint",
    "start the job again with --resume_from_checkpoint",
    "the steps since the checkpoint; the cause stays",
)
RECORD_COLLECTIVES = Remedy(
    "record collectives",
    "TORCH_FR_BUFFER_SIZE=2000 (older: TORCH_NCCL_TRACE_BUFFER_SIZE), TORCH_NCCL_DUMP_ON_TIMEOUT=1",
    "some memory; cures nothing, but the next timeout says which rank did what",
)
LATER_SWIFT = Remedy(
    "later ms-swift",
    "4.2.1 or later: its data-parallel ranks are engines apart; it wants trl 0.26 or later",
    "the pinned ms-swift and trl; no ranks in lockstep, as expert parallelism needs them",
    "comes through the late rank with vLLM 0.11.0 (docs/bisect.md)",
    experts=False,
    since=("ms-swift", "4.2.1"),
)
LATER_VLLM = Remedy("later vLLM", "a release in which dense models do not step together", "the pinned stack")
ONE_SERVER_PER_GPU = Remedy(
    "one server per GPU", "N servers instead of --data-parallel-size N", "one address for all"
)
ONE_KIND_PER_BATCH = Remedy(
    "one kind per batch",
    "give every sample an image (a blank one will do), or sort batches by kind",
    "some data preparation",
)
TOUCH_ALL_PARAMETERS = Remedy(
    "touch all parameters on every rank",
    "run the vision tower on a dummy input when the batch has no image",
    "a small forward pass per step",
)
SAME_PATH = Remedy(
    "same path on all ranks",
    "decide by a value that all ranks share (broadcast it), not by local data or `if rank == 0`",
    "one small collective",
)
READ_THE_DEAD_RANKS_LOG = Remedy(
    "read the dead rank's own log", "its traceback, or dmesg for a signal", "nothing"
)
SAME_NETWORK = Remedy(
    "same network for all ranks",
    "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, open ports, a MASTER_ADDR that all can reach",
    "nothing",
)
NO_SHARED_PORT = Remedy(
    "no shared port", "free MASTER_PORT and weight-sync port (51216) per job on a host", "nothing"
)
LONGER_TIMEOUT = Remedy("longer timeout", "--ddp_timeout SECONDS", "a real hang is noticed later")
WORK_BEFORE_TRAINING = Remedy(
    "work before training",
    "tokenise and cache the data set first; save to local disk, copy later",
    "a step more",
)
KEEP_THE_SERVER = Remedy(
    "keep the rollout server alive",
    "restart server and trainer together; look at the server's log first",
    "nothing",
)
ONE_JOB_PER_HOST = Remedy(
    "one job per host", "ms-swift 3.10.3 has no argument for the weight-sync port, 51216", "room"
)
LESS_MEMORY = Remedy(
    "less memory per rank",
    "smaller batch, gradient checkpointing, --vllm_gpu_memory_utilization lower",
    "speed",
)
LOOK_AT_WHAT_IT_WAITS_FOR = Remedy(
    "look at what it waits for",
    "see the line that is named: what should release the lock, or write to the pipe, socket or queue? "
    "py-spy dump --pid PID shows its stack; give the wait a timeout",
    "nothing",
)
MEND_THE_REQUEST = Remedy(
    "mend the request",
    "read the worker's own log for the exception; check the image's path, and --vllm_max_model_len against "
    "--max_length",
    "nothing",
)
