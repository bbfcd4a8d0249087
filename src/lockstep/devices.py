"""Which GPUs this machine has, and which of them each side of the job gets.

Standard library only: it is asked before anything else is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PROC = Path("/proc/driver/nvidia/gpus")
"""One folder per GPU, made by NVIDIA's driver."""
SMI_S = 4.0
"""Longest wait for nvidia-smi: with a broken driver it can hang."""
LEAST_ROLLOUT = 2
"""Data parallel size from which the ranks of the rollout have anything to agree on."""
LEAST_TRAINER = 2


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
    used = tuple(found) if gpus is None else _choose("--gpus", gpus, found, last=False)
    least = LEAST_TRAINER + LEAST_ROLLOUT
    if len(used) < least:
        raise _too_few(used, f"{least}: {LEAST_TRAINER} for the trainer, {LEAST_ROLLOUT} for the rollout")
    generating = _choose("--rollout-gpus", rollout or str(LEAST_ROLLOUT), used, last=True)
    training = tuple(gpu for gpu in used if gpu not in generating)
    for side, own, fewest in (("rollout", generating, LEAST_ROLLOUT), ("trainer", training, LEAST_TRAINER)):
        if len(own) < fewest:
            raise _too_few(
                used, f"{fewest} for the {side}, and --rollout-gpus {rollout} leaves it {len(own)}"
            )
    return training, generating


def _choose(option: str, wanted: str, among: Sequence[int], *, last: bool) -> tuple[int, ...]:
    words = [word.strip() for word in wanted.split(",")]
    if not all(word.isdigit() for word in words):
        raise DeviceError(f"{option} {wanted}: expected how many GPUs (6) or which (0,1,2,3,6,7)")
    numbers = tuple(int(word) for word in words)
    if len(numbers) == 1:
        count = numbers[0]
        if count > len(among):
            raise _too_few(among, f"{count}, as {option} says")
        return tuple(among[len(among) - count :] if last else among[:count])
    if len(set(numbers)) < len(numbers):
        raise DeviceError(f"{option} {wanted}: names a GPU twice")
    if missing := [str(number) for number in numbers if number not in among]:
        raise _too_few(among, f"number {', '.join(missing)}, as {option} says")
    return numbers


def _too_few(found: Sequence[int], needs: str) -> DeviceError:
    have = f"{len(found)} ({', '.join(map(str, found))})" if found else "none"
    return DeviceError(f"GPUs found: {have}; needed: {needs}. Without them, try: nox -s cpu_stress")
