"""Starts the probe of this process, once, if the job asks for one."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lockstep import env
from lockstep.inside.group_names import Purpose, no_purpose
from lockstep.inside.recorder import Probe
from lockstep.inside.writer import complain

PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, 2**64 - 1
"""`sys/prctl.h`, `linux/prctl.h`."""

_probe: Probe | None = None


@dataclass(frozen=True)
class Recorded:
    """What the recorder must know of a stack."""

    stack: str = ""
    """Its name, as `lockstep.stacks` has it."""
    packages: tuple[str, ...] = ("torch",)
    """Those whose versions are recorded."""
    purpose: Purpose = no_purpose


NEUTRAL = Recorded()
"""Torch alone."""


def attach(side: str, role: str, rank: int, recorded: Recorded = NEUTRAL) -> Probe | None:
    """The process's probe, made on the first call; None when the environment names no run folder, or one that
    cannot be written.
    """
    global _probe
    directory = os.environ.get(env.RUN_DIR)
    if not directory:
        return None
    if _probe is None or _probe.pid != os.getpid():  # a forked child has its parent's, which is silent there
        try:
            versions = _versions(recorded.packages)
            _probe = Probe(
                Path(directory), side, role, rank, versions, stack=recorded.stack, purpose=recorded.purpose
            )
            let_trace()
            _own_log(Path(directory) / "logs" / f"{side}-{role.replace(' ', '_')}-{rank}.log")
        except OSError as error:
            complain(f"cannot record this process: {error}")
    return _probe


def let_trace() -> None:
    """Let any process of this user look at this one's stack, as py-spy does for the evidence.

    Where Yama restricts ptrace to descendants (`kernel.yama.ptrace_scope` 1, Linux `admin-guide/LSM/Yama`),
    the runner's py-spy, which is a sibling, could not. Elsewhere the call fails, and nothing is needed.
    """
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)


def current() -> Probe | None:
    """The probe, if `attach` was called in this process."""
    return _probe


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _own_log(path: Path) -> None:
    """From here on this process, with its threads and C libraries, writes to a log of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"lockstep: the log of this process (pid {os.getpid()}) goes on in {path}", flush=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
