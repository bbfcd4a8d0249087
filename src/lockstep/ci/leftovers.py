"""Processes that a run of this checkout has left, though the run itself is over.

`python -m lockstep.ci.leftovers RUNS` lists them, `--end` ends them; exit code 1 if any is left or if a run
is going on. RUNS is what `lockstep run --out` was given: only processes that record into it are looked at,
and none while a run holds its lock. They must also belong to the owner of RUNS: root sees everyone's
processes, and anyone can put any folder's name into an environment. A run ends its own processes, also when
it is killed; this is the look afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.env import RUN_DIR
from lockstep.guard import guarded

MARK = f"{RUN_DIR}=".encode()
"""Every process of a job has this variable (`lockstep.stacks.swift.commands`)."""
LOCK = ".lock"
"""Held by a run for as long as it lives (`lockstep.run.run_lock`)."""
GRACE_S = 5.0


class RunInProgress(Exception):
    """A run records into this folder now: its processes are not left over."""


@dataclass(frozen=True)
class Process:
    pid: int
    command: str
    run_dir: Path
    started: int
    """Kernel ticks; with the pid it names one process and no other."""
    owner: int
    """The user's number."""


def jobs(proc: Path = Path("/proc")) -> list[Process]:
    """Live processes of this user's jobs on this host, whether their runs go on or not, by rising pid."""
    found = []
    for folder in sorted((p for p in proc.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            run_dir = next((v[len(MARK) :] for v in environment if v.startswith(MARK)), None)
            if run_dir is None:
                continue
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            owner = _owner((folder / "status").read_text())
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # gone, or another user's
            continue
        # proc(5): after the name come the state, and as the twentieth field the start time.
        if fields[0] != "Z":
            run = Path(os.fsdecode(run_dir))
            found.append(Process(int(folder.name), command[:120], run, int(fields[19]), owner))
    return found


def _owner(status: str) -> int:
    """Return the real user of a process. The folder in /proc is root's when a process is not dumpable."""
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))


@contextlib.contextmanager
def over(runs: Path) -> Iterator[None]:
    """While no run can begin in `runs`. Raises RunInProgress."""
    if not runs.is_dir():
        yield
        return
    # Not through a link: root would make a file wherever it leads.
    handle = os.open(runs / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "a") as lock:
        held = os.fstat(handle)
        # A hard link to a file of root's must not be given away.
        if os.geteuid() == 0 and stat.S_ISREG(held.st_mode) and held.st_nlink == 1:
            owner = runs.stat()
            os.fchown(handle, owner.st_uid, owner.st_gid)  # the owner's next run has to open it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunInProgress(f"{runs}: a run is going on; its processes are not touched") from None
        yield


def find(runs: Path) -> list[Process]:
    """Return the live processes that record into a folder below `runs` and are its owner's, by rising pid."""
    try:
        owner = runs.stat().st_uid
    except FileNotFoundError:
        return []
    home = runs.resolve()
    return [process for process in jobs() if process.owner == owner and home in _resolved(process).parents]


def _resolved(process: Process) -> Path:
    """Return the folder that `process` records into, without links; a relative one is below its own."""
    if process.run_dir.is_absolute():
        return process.run_dir.resolve()
    with contextlib.suppress(OSError):
        return (Path(f"/proc/{process.pid}/cwd").readlink() / process.run_dir).resolve()
    return process.run_dir


def end(processes: Sequence[Process], grace_s: float = GRACE_S) -> list[Process]:
    """SIGTERM, after `grace_s` SIGKILL; returns what is left after that."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _still(processes):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
        until = time.monotonic() + grace_s
        while _still(processes) and time.monotonic() < until:
            time.sleep(0.05)
    return _still(processes)


def _still(processes: Sequence[Process]) -> list[Process]:
    live = set(jobs())
    return [process for process in processes if process in live]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="List what a run that is over has left.")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--end", action="store_true", help="end them")
    options = parser.parse_args(arguments)
    try:
        with over(options.runs):
            left = find(options.runs)
            for process in left:
                print(f"left over: process {process.pid}: {process.command}")
            if options.end and left:
                left = end(left)
                print(f"{len(left)} could not be ended" if left else "all of them have been ended")
    except RunInProgress as error:
        print(error, file=sys.stderr)
        return 1
    return 1 if left else 0


if __name__ == "__main__":
    guarded(lambda: main(sys.argv[1:]))
