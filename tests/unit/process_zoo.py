"""A command that starts every kind of process that is hard to end: `python process_zoo.py FOLDER`.

Each process writes its pid to FOLDER/<kind>.pid; the server its port to FOLDER/port, the one with shared
memory the paths to FOLDER/shm. FOLDER/ready appears last.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

KINDS = ("plain", "session", "deaf", "stopped", "daemon", "server", "memory")


def deafen() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def put(folder: Path, name: str, text: str) -> None:
    part = folder / f"{name}.part"
    part.write_text(text)
    part.rename(folder / name)


def session(folder: Path) -> None:
    os.setsid()


def deaf(folder: Path) -> None:
    os.setsid()
    deafen()


def stopped(folder: Path) -> None:
    deafen()
    put(folder, "stopped.pid", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def daemon(folder: Path) -> None:
    """Forked twice, in a session of its own, without an environment, deaf (what is ignored stays so over
    exec)."""
    os.setsid()
    deafen()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    code = (
        f"import os, time; open({str(folder / 'daemon.pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    os.execve(sys.executable, [sys.executable, "-S", "-c", code], {})


def server(folder: Path) -> None:
    deafen()
    listening = socket.create_server(("127.0.0.1", 0))
    put(folder, "port", str(listening.getsockname()[1]))
    serving.append(listening)


def memory(folder: Path) -> None:
    """Shared memory as Python makes it, a named semaphore, and a mapped file in a folder, its descriptor
    closed."""
    deafen()
    block = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(block._name, "shared_memory")  # type: ignore[attr-defined]
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    resource_tracker.unregister(semaphore._semlock.name, "semaphore")  # type: ignore[attr-defined]
    path = Path("/dev/shm") / f"zoo_{secrets.token_hex(4)}" / "deep" / "block"
    path.parent.mkdir(parents=True)
    with path.open("wb+") as file:
        file.truncate(4096)
        serving.append(mmap.mmap(file.fileno(), 4096))
    serving.extend([block, semaphore])
    semaphore_path = f"/dev/shm/sem.{semaphore._semlock.name[1:]}"  # type: ignore[attr-defined]
    put(folder, "shm", "\n".join([f"/dev/shm/{block.name}", semaphore_path, str(path)]))


serving: list[object] = []


def main() -> None:
    folder = Path(sys.argv[1])
    actions: dict[str, Callable[[Path], None]] = {
        "session": session,
        "deaf": deaf,
        "stopped": stopped,
        "daemon": daemon,
        "server": server,
        "memory": memory,
    }
    for kind in KINDS:
        if os.fork() == 0:
            actions.get(kind, lambda folder: None)(folder)
            put(folder, f"{kind}.pid", str(os.getpid()))
            while True:
                time.sleep(600)
    while not all(
        (folder / f"{kind}.pid").exists() and (folder / f"{kind}.pid").stat().st_size for kind in KINDS
    ):
        time.sleep(0.01)
    put(folder, "ready", "")
    while True:
        time.sleep(600)


if __name__ == "__main__":
    main()
