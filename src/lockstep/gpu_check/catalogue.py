"""Every check: what it asks, how many GPUs it needs, what its failure breaks and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    name: str
    gpus: int
    """How many it needs."""
    breaks: str
    """What of the job does not work where it fails."""
    do: str


CHECKS = (
    Check(
        "toolchain",
        1,
        "Triton cannot build its launcher, so no engine starts",
        "install a C compiler, Python's headers (python3.11-dev; a Python that uv installs has them) and the "
        "driver's libcuda.so; start a container with --gpus all",
    ),
    Check(
        "deepspeed",
        1,
        "no trainer rank starts",
        "read the error; where it asks nvcc, set CUDA_HOME to a CUDA 12 toolkit, or unset it",
    ),
    Check(
        "recorder",
        1,
        "the probe counts nothing of NCCL's groups: every verdict would say nothing",
        "is torch the pinned release, and TORCH_FR_BUFFER_SIZE not 0? Report the line that failed",
    ),
    Check(
        "waiting",
        1,
        "a rank that waits for the device is not seen to wait: hangs are called `stalled`, or have no line",
        "report what was seen",
    ),
    Check(
        "capture, plain",
        1,
        "nothing: it says whether a plain read spoils captures here, which the probe avoids",
        "report the error",
    ),
    Check(
        "capture, guarded",
        1,
        "a read of the probe's spoils CUDA graphs that other processes than vLLM's engines capture",
        "do not watch such processes; engines are safe, as the probe reads nothing while they capture",
    ),
    Check(
        "hang of two",
        2,
        "the verdict on a hang is wrong: do not trust a run on this machine",
        "report the verdict that was given",
    ),
    Check(
        "PyNccl",
        2,
        "the weight sync between trainer and rollout does not come about",
        "NCCL_DEBUG=INFO says where it stops: often /dev/shm is too small (docker run --shm-size=16g), or "
        "peer-to-peer access is broken (try NCCL_P2P_DISABLE=1)",
    ),
    Check(
        "RAS",
        2,
        "there is no second witness: NCCL's own report is missing from the evidence. The verdict needs none",
        "report the answer; NCCL before 2.24 has none",
    ),
)
