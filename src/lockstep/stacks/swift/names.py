"""What this stack calls the things by which a cause is told."""

from __future__ import annotations

from lockstep.verdict import Names

NAMES = Names(
    # The groups of vLLM's data-parallel engines, also where they are synchronised on the CPU.
    waves=("rollout.dp", "rollout.dp.cpu", "rollout.unfinished"),
    # vLLM 0.11.0, `vllm/v1/engine/core.py`.
    idle="_process_input_queue",
    # How transformers names the file of a model.
    model="/modeling_",
)
