"""Lets a fault act at a trainer's step, as a user's callback would."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState


class AfterStep(TrainerCallback):  # type: ignore[misc]  # an untyped base
    """Calls `act(control)` once, when optimizer step `step` has ended."""

    def __init__(self, step: int, act: Callable[[TrainerControl], None]) -> None:
        self._step, self._act = step, act

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == self._step:
            self._act(control)


def after_step(step: int, act: Callable[[TrainerControl], None], *, first: bool = False) -> None:
    """Has `act` called on this rank after step `step`; `first`: before the probe marks its end."""
    from swift.plugin.callback import extra_callbacks

    extra_callbacks.insert(0 if first else len(extra_callbacks), AfterStep(step, act))


def own_rank() -> int:
    """This trainer rank, as torchrun has told it."""
    return int(os.environ["RANK"])
