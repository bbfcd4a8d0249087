"""One trainer rank leaves the order of collectives: one less, one more, two in the other order, one of
another size.

The twins of code in a callback, a metric or a loss that depends on what the rank has seen. All take place
between the end of `step` and the next boundary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.inside.faults import tell
from lockstep.stacks.swift.inside.faults.after_step import after_step, own_rank


def skip(rank: int, step: int) -> None:
    """`rank` does not take part in the gather of the loss for the log: code under `if this is the main
    process`.
    """
    done = False

    def gather(original: Any, self: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        if done or self.state.global_step != step or own_rank() != rank:
            return original(self, tensors, *args, **kwargs)
        done = True
        tell(f"rank {rank} leaves out the gather of its loss after step {step}")
        return tensors

    wrap("transformers.trainer:Trainer._nested_gather", gather)


def extra(rank: int, step: int) -> None:
    """`rank` alone sums a flag up: code under `if loss is not finite`."""

    def act(control: Any) -> None:
        if own_rank() == rank:
            tell(f"rank {rank} issues an all_reduce of its own after step {step}")
            dist.all_reduce(torch.ones(1))

    after_step(step, act)


def other_order(rank: int, step: int) -> None:
    """All ranks sum two metrics up, `rank` in the other order: a loop over a set, or a dict filled in
    another order.
    """

    def act(control: Any) -> None:
        metrics = [torch.ones(3), torch.ones(5)]
        if own_rank() == rank:
            tell(f"rank {rank} sums its metrics up in the other order after step {step}")
            metrics.reverse()
        for metric in metrics:
            dist.all_reduce(metric)

    after_step(step, act)


def other_size(rank: int, step: int) -> None:
    """All ranks sum up one number per class seen, `rank` has seen one class more."""

    def act(control: Any) -> None:
        if own_rank() == rank:
            tell(f"rank {rank} sums 3 numbers up after step {step}, its peers 2")
        dist.all_reduce(torch.ones(3 if own_rank() == rank else 2))

    after_step(step, act)
