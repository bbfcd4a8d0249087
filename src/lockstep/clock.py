"""Which clock this process has, and what time it is. Standard library only: it loads inside the job."""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from pathlib import Path

_TOGETHER_S = 0.01
_TRIES = 3


@cache
def clock_id() -> str:
    """Return the name of this process's monotonic clock; empty where the system does not tell.

    Processes with the same name can compare their monotonic times: they run on one boot of one machine
    (containers too), and in one time namespace. Source: Linux, `random(4)` and `time_namespaces(7)`.
    """
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        with contextlib.suppress(OSError):  # kernels before 5.6 have no time namespaces
            return f"{boot}/{os.stat('/proc/self/ns/time').st_ino}"  # noqa: PTH116
        return boot
    return ""


def stamp() -> tuple[float, float]:
    """Return the time now, in seconds since the epoch and in seconds of the monotonic clock.

    The two are read again where the process was held up between them, so that they belong together.
    """
    for _ in range(_TRIES):
        before = time.monotonic()
        wall = time.time()
        if time.monotonic() - before < _TOGETHER_S:
            break
    return wall, before
