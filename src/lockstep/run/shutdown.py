"""How a set of processes is ended: asked first, then stopped, then killed, until none is left. Linux only."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from lockstep import env

# After SIGKILL: a process that holds a GPU needs seconds for the driver to release it.
KILL_S = 30.0


def marked(token: str) -> list[psutil.Process]:
    """The live processes that were started with `env.TREE` set to `token`, whoever their parent is."""
    entry = f"{env.TREE}={token}".encode()
    found = []
    for pid in psutil.pids():
        try:
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(psutil.Process(pid))
        except (OSError, psutil.NoSuchProcess):
            continue
    return found


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def end_all(
    find: Callable[[], list[psutil.Process]],
    grace_s: float,
    *,
    watch: Callable[[list[psutil.Process]], object] = lambda processes: None,
    pause: Callable[[float], bool] = _sleep,
    kill_s: float = KILL_S,
) -> list[psutil.Process]:
    """End whatever `find` returns until it returns nothing; returns what outlived SIGKILL for `kill_s`.

    For `grace_s` seconds each process, also one that appears meanwhile, has had one SIGTERM (and SIGCONT, as
    a stopped process cannot act on it). Then all are stopped, so that none can start another or make a file
    unseen, shown to `watch`, and killed. `watch` also sees them while they are asked. `pause(seconds)` waits,
    and returns True to end the grace early.
    """
    asked: set[psutil.Process] = set()
    deadline = time.monotonic() + grace_s
    while processes := find():
        watch(processes)
        if time.monotonic() >= deadline:
            break
        for process in set(processes) - asked:
            _send(process, signal.SIGTERM)
            _send(process, signal.SIGCONT)
            asked.add(process)
        if pause(0.05):
            break

    deadline = time.monotonic() + kill_s
    while processes := _freeze(find):
        watch(processes)
        for process in processes:
            _send(process, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return find()
        time.sleep(0.02)
    return []


def _freeze(find: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    """Stop all processes; again for those that were started while it went round, but not without end."""
    stopped: set[psutil.Process] = set()
    processes: list[psutil.Process] = []
    for _ in range(5):
        processes = find()
        fresh = set(processes) - stopped
        if not fresh:
            break
        for process in fresh:
            _send(process, signal.SIGSTOP)
        stopped |= fresh
    return processes


def describe(process: psutil.Process) -> str:
    """One line that names a process that could not be ended."""
    with contextlib.suppress(psutil.Error):
        return f"process {process.pid} ({process.name()}, {process.status()}) could not be ended"
    return f"process {process.pid} could not be ended"


def _send(process: psutil.Process, number: signal.Signals) -> None:
    # psutil compares the start time first, so a process id that was given to another process is left alone.
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
