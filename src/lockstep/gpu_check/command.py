"""`lockstep gpu-check`: runs the checks one after another, prints a line for each, and writes a JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from lockstep import devices
from lockstep.gpu_check.catalogue import CHECKS, Check
from lockstep.stacks.swift import toolkit
from lockstep.stacks.swift.commands import LOOPBACK, RING, without_foreign

VERSION = 1
"""Of the JSON."""
CHECK_S = 180.0
"""Longest time for one check."""
TOLD = 600
"""Characters of what a check says, at most."""
PACKAGES = ("torch", "vllm", "deepspeed", "triton", "ms-swift", "nvidia-nccl-cu12")

State = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Found:
    """What came of one check."""

    name: str
    state: State
    seen: str
    seconds: float
    breaks: str = ""
    """What its failure breaks; empty unless it failed. So is `do`."""
    do: str = ""

    def line(self) -> str:
        """As it is printed."""
        told = f"{self.name:17} {self.state:7} {self.seconds:5.1f} s  {self.seen}"
        return f"{told}\n  breaks: {self.breaks}\n  do: {self.do}" if self.state == "failed" else told


Ask = Callable[[str, Mapping[str, str]], tuple[bool, str]]
"""From a check's name and its environment: whether it passed, and what it said."""


def run(path: Path | None, say: Callable[[str], None] = print) -> int:
    """Checks this machine; exit code 0 if all that its GPUs allow is well, 1 if not, or if it has none.

    `path`: where the JSON goes, if anywhere. Raises OSError when it cannot be written.
    """
    try:
        gpus = devices.find_gpus()
        if not gpus:
            raise devices.too_few(gpus, "1 for gpu_check, 2 for all of it")
    except devices.DeviceError as error:
        say(f"gpu_check: {error}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        found = check(gpus, environment(gpus, Path(folder)), ask, say)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(to_json(gpus, found), indent=1) + "\n")
    failed = [each.name for each in found if each.state == "failed"]
    skipped = [each.name for each in found if each.state == "skipped"]
    good = len(found) - len(failed) - len(skipped)
    say(f"gpu_check: {good} ok, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


def check(
    gpus: Sequence[int],
    env: Mapping[str, str],
    ask: Ask,
    say: Callable[[str], None],
    checks: Sequence[Check] = CHECKS,
) -> list[Found]:
    """What came of each check; those that need more GPUs are skipped."""
    found = []
    for each in checks:
        if len(gpus) < each.gpus:
            result = Found(each.name, "skipped", f"needs {each.gpus} GPUs, found {len(gpus)}", 0.0)
        else:
            begun = time.monotonic()
            passed, seen = ask(each.name, env)
            spent = round(time.monotonic() - begun, 1)
            more = {} if passed else {"breaks": each.breaks, "do": each.do}
            result = Found(each.name, "ok" if passed else "failed", seen[:TOLD], spent, **more)
        found.append(result)
        say(result.line())
    return found


def environment(gpus: Sequence[int], folder: Path) -> dict[str, str]:
    """What the job's processes would have."""
    env = without_foreign(os.environ) | LOOPBACK
    env |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "NCCL_SOCKET_IFNAME": "lo",
        "TORCH_FR_BUFFER_SIZE": RING["cuda"],
        "TORCH_NCCL_CUDA_EVENT_CACHE": "1",
        "TMPDIR": str(folder),
    }
    if not toolkit.has_nvcc(os.environ):
        toolkit.make_stub(folder / "cuda_home")
        env["CUDA_HOME"] = str(folder / "cuda_home")
    return env


def ask(name: str, env: Mapping[str, str], limit_s: float = CHECK_S) -> tuple[bool, str]:
    """Run a check in a process of its own, which is ended after `limit_s` with all that it has started."""
    argv = [sys.executable, "-m", "lockstep.gpu_check.inside", name]
    process = subprocess.Popen(
        argv,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return False, f"no answer after {limit_s:.0f} s"
    finally:
        _end(process)
    last = (output.strip().splitlines() or ["it said nothing"])[-1]
    if process.returncode not in (0, 1):
        return False, f"ended with status {process.returncode}: {last}"
    return process.returncode == 0, last


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def to_json(gpus: Sequence[int], found: Sequence[Found]) -> dict[str, object]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "v": VERSION,
        "t": round(time.time(), 1),
        "host": socket.gethostname(),
        "gpus": list(gpus),
        "versions": versions,
        "ok": all(each.state != "failed" for each in found),
        "checks": [asdict(each) for each in found],
    }
