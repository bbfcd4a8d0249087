"""A trainer rank whose micro-batch has no image, on a release that does not run the vision tower then.

ms-swift 3.10.3 runs it on a dummy image (`_compat_qwen3_vl_mixed_data` in `swift/llm/model/model/qwen.py`),
so that all ranks gather the same ZeRO-3 parameters. Other models, and other releases, lack that: ms-swift
issue 9104.
"""

from __future__ import annotations

from typing import Any

from lockstep.inside.hooks import replace, wrap
from lockstep.stacks.swift.inside.faults import tell
from lockstep.stacks.swift.inside.faults.after_step import own_rank


def undo_compat() -> None:
    """The model's own forward, as transformers has it; says in the log when a rank's batch has no image."""

    def forward(original: Any, self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if inputs.get("pixel_values") is None:
            tell(f"rank {own_rank()} has a batch without an image")
        return original(self, model, inputs, *args, **kwargs)

    replace("swift.llm.model.model.qwen:_compat_qwen3_vl_mixed_data", lambda *args, **kwargs: None)
    wrap(
        "swift.trainers.rlhf_trainer.grpo_trainer:GRPOTrainer._get_per_token_logps_and_entropies_single",
        forward,
    )
