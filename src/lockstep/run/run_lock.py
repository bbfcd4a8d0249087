"""The folder of the runs: one command at a time, and of the earlier runs the last few are kept.

A user may name any folder, one with files of their own too. So a folder that a run makes has a file in it
that says so, the mark, and nothing without the mark is ever removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

STAMP = "%Y%m%d-%H%M%S"
"""Name of one run's folder, for `time.strftime`."""
KEPT = 3
"""How many runs' folders there are at most, this one's included: one has 0.3 GB, mostly checkpoints."""
MARK = ".lockstep-made"
"""File in every folder that Lockstep has made and may remove again."""
LOCK = ".lock"

_STAMPED = re.compile(r"\d{8}-\d{6}")


class HomeInUse(RuntimeError):
    """A folder cannot be used: another run writes to it, or it has somebody else's files where a run's would
    be; the message names it."""


def _mark_text(folder: Path) -> str:
    # With the name: what was copied under another name is somebody's copy, and stays.
    return f"Made by lockstep as {folder.name}. A later run may remove it; without this file it stays.\n"


def mark(folder: Path) -> Path:
    """Makes `folder`, if it is not there, and puts the mark into it; returns `folder`. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(_mark_text(folder), errors="surrogateescape")
    return folder


def is_ours(folder: Path) -> bool:
    """Whether this is a folder, and no link to one, with the mark in it that `mark` writes."""
    found = folder / MARK
    if folder.is_symlink() or not folder.is_dir() or found.is_symlink() or not found.is_file():
        return False
    try:
        with found.open("rb") as file:
            return file.read(4096) == os.fsencode(_mark_text(folder))
    except OSError:
        return False


def remove(folder: Path) -> bool:
    """Removes a folder that bears the mark, following no link; returns whether there is nothing now.

    Nothing else is touched.
    """
    if is_ours(folder):
        # The mark goes last: what an interrupt leaves is still known for ours.
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MARK:
                with contextlib.suppress(OSError):
                    entry.unlink()
        shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def new_run(folder: Path) -> Path:
    """A new folder below `folder` for a run that begins now, with the mark. Raises OSError."""
    while True:
        place = folder / time.strftime(STAMP)
        try:
            place.mkdir(parents=True)
        except FileExistsError:  # of a run that began in this second
            time.sleep(0.1)
            continue
        return mark(place)


@contextlib.contextmanager
def home(folder: Path) -> Iterator[list[Path]]:
    """Keeps `folder`, which must exist, for this process, and removes the oldest runs in it. Gives the
    folders that are named like runs and stay for want of the mark. Raises HomeInUse.

    The kernel drops the lock with the process, however it ends.
    """
    path = folder / LOCK
    try:
        lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+")
    except OSError as error:
        raise HomeInUse(f"{path}: {error.strerror}: expected a file that this user can write") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read(20).strip()
            holder = holder if holder.isdigit() else "?"
            raise HomeInUse(
                f"{folder}: another lockstep run (process {holder}) is using it; wait, or give --out"
            ) from None
        try:
            known = re.fullmatch(r"\d*\n?", lock.read(20)) is not None
        except ValueError:  # no text
            known = False
        if not known:
            raise HomeInUse(f"{path}: lockstep did not write this file; give another --out")
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield _forget(folder)


def _forget(folder: Path) -> list[Path]:
    runs = sorted(path for path in folder.iterdir() if _STAMPED.fullmatch(path.name))
    ours = [path for path in runs if is_ours(path)]
    for old in ours[: max(0, len(ours) - KEPT + 1)]:
        remove(old)
    return [path for path in runs if path not in ours and path.is_dir() and not path.is_symlink()]


def left_text(left: list[Path]) -> str:
    """A sentence on folders that `home` has left; empty if there are none."""
    if not left:
        return ""
    named = ", ".join(path.name for path in left[:3]) + (", ..." if len(left) > 3 else "")
    return (
        f"{left[0].parent}: {len(left)} {'folders' if len(left) > 1 else 'folder'} without the mark of a run "
        f"({MARK}) stay: {named}. Remove them yourself if they are runs of an older lockstep"
    )
