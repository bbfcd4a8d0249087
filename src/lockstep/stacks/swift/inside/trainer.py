"""Boundaries of a trainer rank: Hugging Face's callbacks where there are some, two methods of ms-swift where
there are none.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from lockstep.inside.attach import current
from lockstep.inside.hooks import find, wrap
from lockstep.inside.recorder import Probe
from lockstep.inside.signal_flush import before_signals
from lockstep.stacks.swift.compat import CALLBACK, place
from lockstep.stacks.swift.inside.recorded import attach
from lockstep.stacks.swift.inside.weight_sync import count_weight_sync


class Boundaries(TrainerCallback):  # type: ignore[misc]  # an untyped base
    """Marks what the trainer passes.

    Evaluation and saving have no callback for their begin. They follow a step at once, in this order, and the
    trainer's own flow callback, which runs before this one, has decided on both by then; so the step's end,
    or the evaluation's, is the begin. An evaluation ends with its last batch: what follows are its metrics.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._evaluating = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._probe.boundary("train begin", state.global_step)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._probe.boundary("step", state.global_step)
        self._evaluating = control.should_evaluate
        if control.should_evaluate:
            self._probe.boundary("eval begin", state.global_step)
        elif control.should_save:
            self._probe.boundary("save begin", state.global_step)

    def evaluated(self, step: int) -> None:
        """The evaluation's last batch is done."""
        if self._evaluating:
            self._probe.boundary("eval end", step)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._evaluating:
            return
        self._evaluating = False
        if control.should_save:
            self._probe.boundary("save begin", state.global_step)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._probe.boundary("save end", state.global_step)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._probe.boundary("train end", state.global_step)


def attach_trainer() -> Probe | None:
    """The probe of this trainer rank (`RANK` is set by torchrun); it says also what ended the rank."""
    before = current()
    probe = attach("trainer", "rank", int(os.environ.get("RANK", "0")))
    if probe is not None and probe is not before:
        before_signals(probe.close)
    return probe


def watch_client() -> None:
    """Counts the weight sync of trainer rank 0; before it connects to the rollout."""
    if (probe := attach_trainer()) is not None:
        count_weight_sync(probe, "trainer")


def watch_trainer() -> None:
    """Marks the boundaries of this rank."""
    probe = attach_trainer()
    if probe is None:
        return
    boundaries = Boundaries(probe)
    _call_back(boundaries)

    def evaluate(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        boundaries.evaluated(self.state.global_step)
        return result

    def generate(original: Any, *args: Any, **kwargs: Any) -> Any:
        probe.boundary("generate begin")
        result = original(*args, **kwargs)
        probe.boundary("generate end")
        return result

    def weight_sync(original: Any, *args: Any, **kwargs: Any) -> Any:
        probe.boundary("weight sync begin")
        result = original(*args, **kwargs)
        probe.boundary("weight sync end")
        return result

    wrap(f"{place('trainer')}.evaluation_loop", evaluate)
    wrap(f"{place('mixin')}._infer_single_or_multi_turn", generate)
    wrap(f"{place('mixin')}._move_model_to_vllm", weight_sync)


def _call_back(boundaries: Boundaries) -> None:
    """ms-swift 3 has a list of callbacks, ms-swift 4 a table of their makers; see
    `--callbacks` in `lockstep.stacks.swift.commands`."""
    known = find(place("callbacks"))
    if isinstance(known, list):
        known.append(boundaries)
    else:
        known[CALLBACK] = lambda *_: boundaries
