"""Weight sync on gloo, opened and closed again and again, as a trainer that comes back does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import ranks  # noqa: E402

from lockstep.run.ports import free_ports, release_ports  # noqa: E402
from lockstep.stacks.swift.inside import cpu  # noqa: E402

TIMES = 40
"""Among so many closings in the wrong order one ends the process: torch's server polls a closed socket."""


def _open_and_close(_: Any, rank: int) -> None:
    from vllm.distributed.utils import StatelessProcessGroup

    communicator_of = cpu._gloo_communicator()
    for port in map(int, os.environ["TEST_PORTS"].split()):
        # As trl does it: nothing but the communicator holds the group, and with it the socket.
        communicator = communicator_of(
            StatelessProcessGroup.create(host="127.0.0.1", port=port, rank=rank, world_size=2), device="cpu"
        )
        tensor = torch.full((4,), float(rank))
        communicator.broadcast(tensor, src=1)
        assert tensor[0] == 1
        communicator.group.barrier()
        del communicator


def test_closing_the_communicator_does_not_end_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm.distributed.utils  # noqa: F401  (once, before the ranks are forked)

    ports = free_ports(TIMES, "127.0.0.1")
    release_ports(ports)
    monkeypatch.setenv("TEST_PORTS", " ".join(map(str, ports)))
    statuses = ranks.run(tmp_path, _open_and_close, probed=False)
    assert statuses == [0, 0], [path.read_text() for path in tmp_path.glob("failed-*")]
