"""Which files under /dev/shm belong to a set of processes, and their removal. Linux only.

A killed process leaves its named shared memory behind (Python's `psm_*` and `sem.mp-*`, torch's `torch_*`,
NCCL's `nccl-*`, and whatever else a library invents), so names prove nothing. A file counts as a process's
own when it was not there at the start and the process was seen with it mapped or open. Only torch's names are
read: a tensor on its way between two processes ("file_system" sharing) is held by neither, but has its
maker's pid.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

ROOT = os.path.realpath("/dev/shm")

# A file that nobody of ours holds is most likely another program's: it is looked at this often, then only on
# demand.
_LOOKS = 4


def listing(root: str = ROOT) -> dict[str, int]:
    """Every file under `root` now, path -> inode."""
    found: dict[str, int] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - runs several times a second
            with contextlib.suppress(OSError):
                found[path] = os.lstat(path).st_ino
    return found


def held_by(pid: int, root: str = ROOT) -> set[int]:
    """Inodes of the files under `root` that process `pid` has mapped or open; empty if it cannot be read.

    Inodes, as the name in /proc may be another one: glibc's sem_open() maps a temporary file that it then
    links to its name.
    """
    prefix = root + "/"
    held: set[int] = set()
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/maps").open(errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith(prefix):
                held.add(int(fields[4]))
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(prefix):
                    held.add(link.stat().st_ino)
    return held


class SharedMemory:
    """The files under /dev/shm that a set of processes made since `baseline` was listed."""

    def __init__(self, baseline: Mapping[str, int], root: str = ROOT) -> None:
        self.owned: dict[str, int] = {}
        self._root = root
        self._baseline = dict(baseline)
        self._looks: dict[tuple[str, int], int] = {}

    def observe(self, pids: Callable[[], Iterable[int]], *, thorough: bool = False) -> dict[str, int]:
        """Attribute files that appeared to the processes `pids()`; returns those attributed by this call.

        Costs one directory listing while nothing new is there; `pids` is called, and the processes' maps are
        read, only for files whose owner is still unknown. `thorough` looks at those given up on as well.
        """
        unknown = {}
        seen = {}
        for path, inode in listing(self._root).items():
            if self._baseline.get(path) == inode or self.owned.get(path) == inode:
                continue
            looks = self._looks.get((path, inode), 0)
            seen[path, inode] = looks + 1
            if thorough or looks < _LOOKS:
                unknown[path] = inode
        self._looks = seen
        if not unknown:
            return {}
        processes = set(pids())
        fresh = {path: inode for path, inode in unknown.items() if _torch_pid(path) in processes}
        if len(fresh) < len(unknown):
            held = {inode for pid in processes for inode in held_by(pid, self._root)}
            fresh |= {path: inode for path, inode in unknown.items() if inode in held}
        self.owned.update(fresh)
        return fresh

    def remove(self) -> list[str]:
        """Remove the owned files that no live process holds; returns a sentence for each that had to stay."""
        there = {path: inode for path, inode in self.owned.items() if _inode(path) == inode}
        if not there:
            return []
        holders: dict[int, int] = {}
        for pid in psutil.pids():
            for inode in held_by(pid, self._root):
                holders[inode] = pid
        left = []
        for path, inode in there.items():
            if inode in holders:
                left.append(f"shared memory {path} is in use by process {holders[inode]}")
                continue
            try:
                Path(path).unlink(missing_ok=True)
            except OSError as error:
                left.append(f"shared memory {path} cannot be removed: {error.strerror}")
            else:
                self._remove_empty_folders(Path(path).parent)
        return left

    def _remove_empty_folders(self, folder: Path) -> None:
        """Remove a folder that the removed file was the last of, unless it was there before."""
        before = {str(parent) for path in self._baseline for parent in Path(path).parents}
        while str(folder) != self._root and str(folder) not in before:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


def _torch_pid(path: str) -> int | None:
    match = re.match(r"torch_(\d+)_", Path(path).name)
    return int(match[1]) if match else None


def _inode(path: str) -> int | None:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None
