"""One trainer rank decides otherwise than its peers what comes next: one evaluation batch more, a
checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.inside.faults import tell
from lockstep.stacks.swift.inside.faults.after_step import after_step, own_rank


def extra_eval_batch(rank: int, evaluation: int) -> None:
    """`rank` gets one batch more in the `evaluation`-th evaluation (from 1): a data set split unevenly and
    not padded.
    """
    begun = 0

    def evaluation_loop(original: Any, self: Any, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == evaluation and own_rank() == rank:
            tell(f"rank {rank} gets one batch more in evaluation {evaluation}")
            dataloader = _Longer(dataloader)
        return original(self, dataloader, *args, **kwargs)

    wrap("swift.trainers.rlhf_trainer.grpo_trainer:GRPOTrainer.evaluation_loop", evaluation_loop)


class _Longer:
    """A data loader that yields its last batch twice."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        batch = None
        for batch in self._loader:
            yield batch
        yield batch

    def __len__(self) -> int:
        return len(self._loader) + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def lone_save(rank: int, step: int) -> None:
    """`rank` saves after `step`, its peers do not: saving by the rank's own clock, or on a signal that
    reached one process.
    """

    def act(control: Any) -> None:
        if own_rank() == rank:
            tell(f"rank {rank} alone saves after step {step}")
            control.should_save = True

    after_step(step, act, first=True)
