"""The weight-sync group's making: NCCL waits there for every rank, gloo's stand-in does not count it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.inside.counters import Counted
from lockstep.inside.group_names import Group
from lockstep.inside.recorder import Probe
from lockstep.stacks.swift.compat import place
from lockstep.stacks.swift.inside.weight_sync import COMMUNICATORS, count_weight_sync


class StatelessProcessGroup:
    world_size, rank = 3, 2

    def barrier(self) -> None:
        pass


def _communicator(name: str, seen: list[tuple[int, int]], counters: list[Counted]) -> type:
    def make(self: Any, group: StatelessProcessGroup, device: str) -> None:
        self.group = group
        seen.extend((counter.issued, counter.completed) for counter in counters)

    def broadcast(self: Any, tensor: Any, src: int) -> None:
        pass

    return type(name, (), {"__init__": make, "broadcast": broadcast})


@pytest.mark.parametrize(
    ("backend", "during", "issued"), [("PyNcclCommunicator", [(1, 0)], 2), ("GlooCommunicator", [], 1)]
)
def test_a_rank_that_waits_for_the_others_in_ncclcomminitrank_waits_in_an_operation(
    monkeypatch: pytest.MonkeyPatch, backend: str, during: list[tuple[int, int]], issued: int
) -> None:
    counters: list[Counted] = []

    def count(group: Group) -> Counted:
        counters.append(Counted(group))
        return counters[-1]

    seen: list[tuple[int, int]] = []
    client, utils = ModuleType("client"), ModuleType("utils")
    client.PyNcclCommunicator = _communicator(backend, seen, counters)  # type: ignore[attr-defined]
    utils.StatelessProcessGroup = StatelessProcessGroup  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, place(COMMUNICATORS["trainer"]), client)
    monkeypatch.setitem(sys.modules, "vllm.distributed.utils", utils)
    monkeypatch.setattr(StatelessProcessGroup, "barrier", StatelessProcessGroup.barrier)

    count_weight_sync(cast(Probe, SimpleNamespace(count=count)), "trainer")
    made = client.PyNcclCommunicator(StatelessProcessGroup(), "cuda:0")
    assert seen == during
    made.broadcast(SimpleNamespace(dtype="torch.bfloat16", numel=lambda: 7), 0)
    (counter,) = counters
    assert (counter.issued, counter.completed) == (issued, issued)
    assert counter.group == Group("weight-sync", "StatelessProcessGroup", backend, (0, 1, 2), 2)
    ops = [call.op for call in counter.fresh]
    assert ops == (["communicator init"] if during else []) + ["broadcast"]
