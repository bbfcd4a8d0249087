"""Which GPUs this machine has, and which of them each side of the job gets.

Standard library only: it is asked before anything else is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/driver/nvidia/gpus")
"""One folder per GPU, made by NVIDIA's driver."""
SMI_S = 4.0
"""Longest wait for nvidia-smi: with a broken driver it can hang."""
LEAST_ROLLOUT = 2
"""Data parallel size from which the ranks of the rollout have anything to agree on."""
LEAST_TRAINER = 1


@dataclass(frozen=True)
class Scale:
    """What can be run on so many GPUs and more."""

    gpus: int
    job: bool
    """Whether the whole job runs; else the rollout alone is soaked."""
    what: str
    proves: str
    not_proven: str


SCALES = (
    Scale(
        4,
        True,
        "the whole job: a trainer of two ranks and more, a rollout of data parallel size 2",
        "all that the job has: graphs, data parallelism, weight sync, ZeRO-3, the hang and its cure",
        "nothing that the job has",
    ),
    Scale(
        3,
        True,
        "the whole job with one trainer rank, and a rollout of data parallel size 2",
        "graphs, data parallelism, weight sync, the hang and its cure",
        "the trainer's own groups: ZeRO-3 of one rank issues no collective",
    ),
    Scale(
        2,
        False,
        "a soak of the rollout alone, of data parallel size 2 on NCCL",
        "start-up, compilation and graphs with the probe attached, data parallelism, the race and its cure",
        "the trainer, and the weight sync with its NCCL communicator",
    ),
    Scale(
        1,
        False,
        "a reduced soak: both engines of the rollout on one GPU, which keep step over gloo",
        "start-up, compilation and graphs, and the race (in rollout.dp.cpu)",
        "anything of NCCL's: its records, whether reading them spoils a capture, weight sync, the trainer",
    ),
)
"""Largest first."""


def scale(used: Sequence[int]) -> Scale:
    """The largest that fits on the GPUs `used`. Raises DeviceError where there is none."""
    for each in SCALES:
        if len(used) >= each.gpus:
            return each
    raise too_few(used, "4 for the whole job, 1 for a reduced soak")


def use(found: Sequence[int], gpus: str | None) -> tuple[int, ...]:
    """Those of `found` that `gpus` names (see `split`), all if it is None. Raises DeviceError."""
    return tuple(found) if gpus is None else _choose("--gpus", gpus, found, last=False)


def alone(found: Sequence[int], gpus: str | None = None, rollout: str | None = None) -> tuple[int, ...]:
    """The GPUs of a rollout without a trainer: as in the job where that fits, else both, else the one twice.

    Raises DeviceError.
    """
    used = use(found, gpus)
    if scale(used).job:
        return split(found, gpus, rollout)[1]
    return used[:LEAST_ROLLOUT] if len(used) >= LEAST_ROLLOUT else used * LEAST_ROLLOUT


class DeviceError(RuntimeError):
    """There are too few GPUs for the job; the message says how many, and what is needed."""


def find_gpus(env: Mapping[str, str] = os.environ, proc: Path = PROC) -> tuple[int, ...]:
    """Numbers of the GPUs that this process may use. Loads no library of CUDA's.

    Counts with `nvidia-smi -L`, or where that is missing or fails, in `proc`. `CUDA_VISIBLE_DEVICES` limits
    them. Raises DeviceError when that holds something else than numbers.
    """
    present = range(_count(env, proc))
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(present)
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if not all(word.isdigit() for word in words):
        raise DeviceError(f"CUDA_VISIBLE_DEVICES={visible}: expected numbers of GPUs (0,1,2,3), not names")
    return tuple(int(word) for word in words if int(word) in present)


def _count(env: Mapping[str, str], proc: Path) -> int:
    if smi := shutil.which("nvidia-smi", path=env.get("PATH")):
        try:
            done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=SMI_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None and done.returncode == 0:
            return len(re.findall(r"^GPU \d+:", done.stdout, re.MULTILINE))
    return len(list(proc.iterdir())) if proc.is_dir() else 0


def split(
    found: Sequence[int], gpus: str | None = None, rollout: str | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The trainer's GPUs and the rollout's, of those in `found`.

    `gpus`: how many to use ("6", the first six), or which ("0,1,4,5"). `rollout`: how many of those ("2", the
    last two), or which ("4,5"); by default the last two, as in the incident. Raises DeviceError.
    """
    used = use(found, gpus)
    least = LEAST_TRAINER + LEAST_ROLLOUT
    if len(used) < least:
        raise too_few(used, f"{least}: {LEAST_TRAINER} for the trainer, {LEAST_ROLLOUT} for the rollout")
    generating = _choose("--rollout-gpus", rollout or str(LEAST_ROLLOUT), used, last=True)
    training = tuple(gpu for gpu in used if gpu not in generating)
    for side, own, fewest in (("rollout", generating, LEAST_ROLLOUT), ("trainer", training, LEAST_TRAINER)):
        if len(own) < fewest:
            raise too_few(used, f"{fewest} for the {side}, and --rollout-gpus {rollout} leaves it {len(own)}")
    return training, generating


def _choose(option: str, wanted: str, among: Sequence[int], *, last: bool) -> tuple[int, ...]:
    words = [word.strip() for word in wanted.split(",")]
    if not all(word.isdigit() for word in words):
        raise DeviceError(f"{option} {wanted}: expected how many GPUs (6) or which (0,1,2,3,6,7)")
    numbers = tuple(int(word) for word in words)
    if len(numbers) == 1:
        count = numbers[0]
        if count > len(among):
            raise too_few(among, f"{count}, as {option} says")
        return tuple(among[len(among) - count :] if last else among[:count])
    if len(set(numbers)) < len(numbers):
        raise DeviceError(f"{option} {wanted}: names a GPU twice")
    if missing := [str(number) for number in numbers if number not in among]:
        raise too_few(among, f"number {', '.join(missing)}, as {option} says")
    return numbers


def too_few(found: Sequence[int], needs: str) -> DeviceError:
    """The error that names the GPUs found and what is needed."""
    have = f"{len(found)} ({', '.join(map(str, found))})" if found else "none"
    return DeviceError(f"GPUs found: {have}; needed: {needs}. Without them, try: nox -s cpu_stress")
