"""The real job for these tests: small, in a folder of its own, with a look at what it leaves behind."""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from lockstep.record import Ledger, LedgerTail, read_directory
from lockstep.run import shm, supervise
from lockstep.run.supervise import Limits, Outcome, run_job
from lockstep.stacks.swift.commands import Ports
from lockstep.stacks.swift.spec import JobSpec, cpu_job

ROOT = Path(__file__).parents[2]
LIMITS = Limits(start_s=240.0, total_s=400.0)

Look = Callable[[list[Ledger]], None]
"""Called about twice a second with the ledgers so far."""


def small_job(model: Path, *, steps: int = 1, **trainer: Any) -> JobSpec:
    """One step with eval and save, unless `trainer` says otherwise."""
    job = cpu_job("job", model=model, datasets=ROOT / "datasets" / "shapes")
    trainer = {"max_steps": steps, "eval_steps": 1, "save_steps": 1, **trainer}
    return job.with_(cache=ROOT / ".lockstep" / "cache", trainer=job.trainer | trainer)


def run(spec: JobSpec, run_dir: Path, look: Look = lambda ledgers: None, limits: Limits = LIMITS) -> Outcome:
    """The job's outcome. Fails if it has left anything."""
    ports: list[int] = []
    choose = supervise.free_ports

    def remember(*args: Any) -> list[int]:
        ports[:] = choose(*args)
        return ports

    def progress(tail: LedgerTail, age: float, healthy: bool) -> None:
        look(tail.ledgers)

    supervise.free_ports = remember
    try:
        with leaves_nothing(run_dir, lambda: ports):
            outcome = run_job(spec, run_dir, limits, progress)
    finally:
        supervise.free_ports = choose
    assert len(ports) == Ports.needed(spec.servers)
    assert outcome.leftovers == []
    return outcome


@contextlib.contextmanager
def leaves_nothing(run_dir: Path, ports: Callable[[], list[int]] = list) -> Iterator[None]:
    """Fails unless the block leaves no process of the run, no port in use, no temporary folder, nothing in
    the working folder, and no new file in shared memory (but for what other programs hold)."""
    before, folders, here = shm.listing(), temporary(), visible()
    yield
    assert visible() <= here
    assert processes(run_dir) == []
    for port in ports():
        socket.create_server(("127.0.0.1", port)).close()
    assert temporary() <= folders
    new = {path: inode for path, inode in shm.listing().items() if before.get(path) != inode}
    held = {inode for pid in psutil.pids() for inode in shm.held_by(pid)} if new else set()
    assert [path for path, inode in new.items() if inode not in held] == []


def visible() -> set[str]:
    """What is in the working folder, but for what its name hides."""
    return {path.name for path in Path().iterdir() if not path.name.startswith(".")}


def temporary() -> set[str]:
    """Folders that jobs made outside of their own."""
    return {str(path) for path in Path(tempfile.gettempdir()).glob("lockstep-????????")}


def processes(run_dir: Path) -> list[str]:
    """Live processes that have the run's folder in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if f"LOCKSTEP_RUN_DIR={run_dir}\0".encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                found.append(f"{process.pid} {process.name()} {process.status()}")
    return found


def by_label(ledgers: list[Ledger], label: str) -> Ledger | None:
    return next((ledger for ledger in ledgers if ledger.process and ledger.label == label), None)


def pid(ledger: Ledger) -> int:
    assert ledger.process is not None
    return ledger.process.pid


def steps(run_dir: Path, name: str) -> list[int | None]:
    """The steps at which trainer rank 0 passed boundaries of that name."""
    rank = by_label(read_directory(run_dir), "trainer rank 0")
    assert rank is not None
    return [boundary.step for boundary in rank.boundaries if boundary.name == name]
