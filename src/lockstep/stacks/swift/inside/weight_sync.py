"""Counts the weight-sync group: vLLM's communicator between trainer rank 0 and every rollout rank.

It is not a group of torch.distributed, so its two operations are counted as they are called.
"""

from __future__ import annotations

from typing import Any

from lockstep.inside.counters import INIT, Counted
from lockstep.inside.group_names import Group
from lockstep.inside.hooks import wrap
from lockstep.inside.recorder import Probe
from lockstep.stacks.swift.compat import place

COMMUNICATORS = {"trainer": "client", "rollout": "server communicator"}
"""The places where each side's code looks the class up."""

NCCL = "PyNcclCommunicator"
"""vLLM's class; on a CPU another one stands in for it (`lockstep.stacks.swift.inside.cpu`)."""


def count_weight_sync(probe: Probe, side: str, server: int = 0) -> None:
    """Wraps the communicator that `side` uses. Call it after anything that replaces the class.

    Each rollout server has a group of its own with the trainer, which makes them in the servers' order.
    """
    name = f"weight-sync#{server + 1}" if server else "weight-sync"
    counters: dict[int, Counted] = {}

    def made(original: Any, self: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        if type(group).__name__ != "StatelessProcessGroup":
            original(self, group, *args, **kwargs)
            return
        ranks = tuple(range(group.world_size))
        backend = type(self).__name__
        if backend == NCCL:  # it waits for every rank, and tries itself out with an all-reduce
            counter = probe.count(Group(name, "StatelessProcessGroup", backend, ranks, group.rank))
            counter.call(INIT, "", None, lambda: original(self, group, *args, **kwargs))
        else:
            original(self, group, *args, **kwargs)
            counter = probe.count(Group(name, "StatelessProcessGroup", backend, ranks, group.rank))
        counters[id(group)] = counter

    def broadcast(original: Any, self: Any, tensor: Any, src: int, *args: Any, **kwargs: Any) -> Any:
        counter = counters.get(id(self.group))
        if counter is None:
            return original(self, tensor, src, *args, **kwargs)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return counter.call(
            "broadcast", dtype, tensor.numel(), lambda: original(self, tensor, src, *args, **kwargs)
        )

    def barrier(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        counter = counters.get(id(self))
        if counter is None:
            return original(self, *args, **kwargs)
        return counter.call("barrier", "", None, lambda: original(self, *args, **kwargs))

    where = f"{place(COMMUNICATORS[side])}:PyNcclCommunicator"
    wrap(f"{where}.__init__", made)
    wrap(f"{where}.broadcast", broadcast)
    wrap("vllm.distributed.utils:StatelessProcessGroup.barrier", barrier)
