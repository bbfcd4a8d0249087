"""Two real ranks on gloo that part after a boundary: what their ledgers prove, whoever gloo aborts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.record import read_directory
from lockstep.run.ports import free_ports
from lockstep.verdict import Kind, Verdict, judge

pytest.importorskip("torch")

RANK = """
import os, sys, time
import torch, torch.distributed as dist
from lockstep.probe.attach import attach
from lockstep.probe.last_words import before_signals

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
probe = attach("trainer", "rank", rank)
before_signals(probe.close)
probe.boundary("train begin", 0)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
time.sleep(1)
probe.boundary("step", 1)
exec(sys.argv[3])
probe.boundary("train end", 1)
dist.destroy_process_group()
"""


def run(folder: Path, body: str, seconds: float = 90.0) -> tuple[Verdict, list[int]]:
    """Starts both ranks; like torchrun, ends the other one when one fails, or both when the time is up."""
    (port,) = free_ports(1, "127.0.0.1")
    env = {
        **os.environ,
        "LOCKSTEP_RUN_DIR": str(folder),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), f"tcp://127.0.0.1:{port}", body], env=env, cwd=folder)
        for rank in (0, 1)
    ]
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.terminate()
        statuses = [rank.wait(20) for rank in ranks]
    return judge(read_directory(folder)), statuses


def test_another_size(tmp_path: Path) -> None:
    """Gloo takes the shorter message for the longer one: one rank goes on to the next, where it hangs."""
    body = "dist.all_reduce(torch.ones(2 + rank)); dist.all_reduce(torch.ones(9 - rank))"
    found, _ = run(tmp_path, body, seconds=30.0)
    assert found.kind in (Kind.STUCK, Kind.DIVERGED), found.sentence
    assert (found.seq, str(found.agreed)) == (4, "step 1")
    assert "rank 0 issued all_reduce #4 of 2 float32; rank 1 issued all_reduce #4 of 3" in found.sentence
    assert found.cause == "rank-dependent-control-flow"


def test_a_longer_message_aborts_the_innocent_rank(tmp_path: Path) -> None:
    body = "n = 1 + 7 * rank; dist.all_gather([torch.ones(n), torch.ones(n)], torch.ones(n))"
    found, statuses = run(tmp_path, body)
    assert statuses[0] == -signal.SIGABRT
    assert found.kind is Kind.DIVERGED, found.sentence
    told = [view.operation for view in found.ranks]
    assert told == ["all_gather #4 of 1 float32", "all_gather #4 of 8 float32"]


def test_another_operation_hangs(tmp_path: Path) -> None:
    body = "a, b, c = torch.ones(3, 1)\ndist.all_reduce(a) if rank else dist.all_gather([a, b], c)"
    found, _ = run(tmp_path, body, seconds=30.0)
    assert found.kind is Kind.STUCK, found.sentence
    told = [view.operation for view in found.ranks]
    assert told == ["all_gather #4 of 1 float32", "all_reduce #4 of 1 float32"]
    assert found.cause == "rank-dependent-control-flow"


def test_a_rank_that_raises(tmp_path: Path) -> None:
    found, statuses = run(tmp_path, "assert rank == 0\ndist.all_reduce(torch.ones(1))")
    assert found.kind is Kind.INCOMPLETE, found.sentence
    assert found.lost == "trainer rank 1"
    assert statuses[1] == 1


def test_ranks_that_do_the_same(tmp_path: Path) -> None:
    found, statuses = run(tmp_path, "dist.all_reduce(torch.ones(5))")
    assert found.kind is Kind.IN_STEP, found.sentence
    assert statuses == [0, 0]
