"""Faults from outside, on a process that only sleeps and a ledger written by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lockstep.stacks.swift.outside_faults import kill_engine_core, stop_worker


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "LOCKSTEP_RUN_DIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env)
    (tmp_path / "ledgers").mkdir()
    yield process
    process.kill()
    process.wait()


def ledger(tmp_path: Path, role: str, pid: int) -> Path:
    path = tmp_path / "ledgers" / f"rollout-{role}-1-{pid}.jsonl"
    path.write_text(json.dumps({"k": "process", "pid": pid}) + "\n")
    return path


def passes(path: Path, name: str) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"k": "boundary", "b": name}, separators=(",", ":")) + "\n")


def state(pid: int) -> str:
    return psutil.Process(pid).status()


def within(seconds: float, pid: int, wanted: str) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if state(pid) == wanted:
            return True
        time.sleep(0.01)
    return False


def test_a_worker_is_stopped_from_its_generation_on_and_goes_on(
    tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    path = ledger(tmp_path, "worker", victim.pid)
    watch = stop_worker(tmp_path, rank=1, generation=2, run_s=0.05, stop_s=0.3, times=2)
    watch.start()
    passes(path, "generate begin")
    assert not within(0.3, victim.pid, psutil.STATUS_STOPPED)
    passes(path, "generate begin")
    assert within(2, victim.pid, psutil.STATUS_STOPPED)
    watch.join(timeout=5)
    assert watch.did == ["stopped for 0.3 s in generation 2"] * 2
    assert within(2, victim.pid, psutil.STATUS_SLEEPING)


def test_a_worker_is_left_alone_once_it_has_answered(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    path = ledger(tmp_path, "worker", victim.pid)
    passes(path, "generate begin")
    watch = stop_worker(tmp_path, rank=1, generation=1, run_s=0.5, stop_s=0.1, times=50)
    watch.start()
    time.sleep(0.1)
    passes(path, "generate end")
    time.sleep(0.8)
    watch.over.set()
    watch.join(timeout=5)
    assert watch.did == []


def test_a_stopped_worker_is_continued_when_the_job_is_over(
    tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    passes(ledger(tmp_path, "worker", victim.pid), "generate begin")
    watch = stop_worker(tmp_path, rank=1, generation=1, run_s=0.01, stop_s=60.0, times=9)
    watch.start()
    assert within(2, victim.pid, psutil.STATUS_STOPPED)
    watch.over.set()
    watch.join(timeout=5)
    assert within(2, victim.pid, psutil.STATUS_SLEEPING)


def test_an_engine_core_is_killed(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    ledger(tmp_path, "engine_core", victim.pid)
    passes(ledger(tmp_path, "worker", 1), "generate begin")
    watch = kill_engine_core(tmp_path, rank=1, generation=1, after_s=0.01)
    watch.start()
    assert victim.wait(5) == -9
    watch.join(timeout=5)
    assert watch.did


def test_a_process_of_another_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ledgers").mkdir()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        ledger(tmp_path, "engine_core", stranger.pid)
        passes(ledger(tmp_path, "worker", 1), "generate begin")
        watch = kill_engine_core(tmp_path, rank=1, generation=1, after_s=0.01)
        watch.start()
        watch.join(timeout=5)
        assert stranger.poll() is None
        assert not watch.did
    finally:
        stranger.kill()
        stranger.wait()
