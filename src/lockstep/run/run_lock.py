"""The folder of the runs: one `lockstep run` at a time, and of the earlier ones the last few are kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

STAMP = "%Y%m%d-%H%M%S"
"""Name of one run's folder, for `time.strftime`."""
KEPT = 3
"""How many runs' folders there are at most, this one's included: one has 0.3 GB, mostly checkpoints."""

_STAMPED = re.compile(r"\d{8}-\d{6}")


class HomeInUse(RuntimeError):
    """Another run writes to this folder; the message names both."""


@contextlib.contextmanager
def home(folder: Path) -> Iterator[None]:
    """Keeps `folder`, which must exist, for this process, and removes the oldest runs in it. Raises
    HomeInUse.

    The kernel drops the lock with the process, however it ends.
    """
    with (folder / ".lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip()
            raise HomeInUse(
                f"{folder}: another lockstep run (process {holder or '?'}) is using it; wait, or give --out"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        _forget(folder)
        yield


def _forget(folder: Path) -> None:
    runs = sorted(path for path in folder.iterdir() if path.is_dir() and _STAMPED.fullmatch(path.name))
    for old in runs[: max(0, len(runs) - KEPT + 1)]:
        shutil.rmtree(old, ignore_errors=True)
