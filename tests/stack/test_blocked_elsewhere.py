"""Real gloo ranks of which some wait for something that is no rank, while another one waits for them."""

from __future__ import annotations

import os
import queue
import socket
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402

from lockstep.inside.recorder import Probe  # noqa: E402
from lockstep.verdict import Kind  # noqa: E402

HANG_S = 14.0


def _lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _pipe() -> None:
    reader, _ = os.pipe()
    os.read(reader, 1)


def _socket() -> None:
    one, _other = socket.socketpair()
    one.recv(1)


def _queue() -> None:
    queue.Queue[int]().get()


KINDS = {"lock": _lock, "pipe": _pipe, "socket": _socket, "queue": _queue}


def _blocked(probe: Probe, rank: int) -> None:
    t = torch.ones(3)
    dist.all_reduce(t)
    probe.boundary("step")
    if rank > 0:
        list(KINDS.values())[rank - 1]()
    dist.all_reduce(t)


def test_ranks_that_wait_for_a_lock_a_pipe_a_socket_or_a_queue_are_blocked_elsewhere(tmp_path: Path) -> None:
    ranks.run(tmp_path, _blocked, 1 + len(KINDS), seconds=HANG_S)
    found = ranks.verdict(tmp_path)
    assert (found.kind, found.cause) == (Kind.STUCK, "blocked-elsewhere"), found.sentence
    assert found.absent == (1, 2, 3, 4)
    for rank, (kind, text) in enumerate(zip(KINDS, found.evidence, strict=True), 1):
        assert text.startswith(f"trainer rank {rank} waits for a {kind} in _{kind} (")
        assert "test_blocked_elsewhere.py:" in text


def _another_way(probe: Probe, rank: int) -> None:
    """Rank 1 does without a collective that rank 0 waits in, goes on, and comes to a queue."""
    t = torch.ones(3)
    dist.all_reduce(t)
    probe.boundary("step")
    if rank == 0:
        dist.all_reduce(t)
    probe.boundary("step")
    _queue()


def test_a_rank_that_went_on_without_its_peer_went_another_way(tmp_path: Path) -> None:
    ranks.run(tmp_path, _another_way, seconds=HANG_S)
    found = ranks.verdict(tmp_path)
    assert (found.kind, found.cause) == (Kind.STUCK, "rank-dependent-control-flow"), found.sentence


def _new_group(probe: Probe, rank: int) -> None:
    """Rank 1 makes a group, which waits in the store for rank 0: that is inside of torch."""
    t = torch.ones(3)
    dist.all_reduce(t)
    probe.boundary("step")
    if rank == 0:
        dist.all_reduce(t)
    else:
        dist.new_group([0, 1])


def test_a_rank_that_waits_for_its_peers_in_the_store_is_not_blocked_elsewhere(tmp_path: Path) -> None:
    ranks.run(tmp_path, _new_group, seconds=HANG_S)
    found = ranks.verdict(tmp_path)
    assert found.cause != "blocked-elsewhere"
    assert all("blocked" not in line for line in ranks.lines(tmp_path, 1, "pulse"))
