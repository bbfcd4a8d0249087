"""The process groups of a trainer: accelerate 1.12, DeepSpeed 0.17.6 and ms-swift 3.10.3, data parallel.

Observed with the real packages on gloo (two ranks, ZeRO-2 and ZeRO-3, with and without a reference model):
group 0 is torch's default, made by DeepSpeed for accelerate; group 1 is DeepSpeed's copy of it
(deepspeed/utils/groups.py, `_clone_world_group`), made by the first engine and shared by all later ones.
ms-swift makes none with `--vllm_mode server`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainerGroup:
    name: str
    guid: int
    purpose: str
    operations: frozenset[str]  # those that it is seen to carry, by c10d's names


_GATHERS = frozenset({"_ALLGATHER_BASE", "ALLGATHER", "ALLGATHER_COALESCED", "COALESCED"})
_SCATTERS = frozenset({"_REDUCE_SCATTER_BASE", "REDUCE_SCATTER"})

DEFAULT = TrainerGroup(
    "trainer.world",
    0,
    "torch's default group: the trainer's own gathers, broadcasts and barriers; DDP's gradients",
    _GATHERS | _SCATTERS | {"ALLREDUCE", "BROADCAST", "BARRIER", "REDUCE", "GATHER", "SCATTER"},
)
ZERO = TrainerGroup(
    "trainer.zero",
    1,
    "DeepSpeed's copy of the default group: parameters gathered, gradients reduced by ZeRO",
    _GATHERS | _SCATTERS | {"ALLREDUCE", "BROADCAST", "BARRIER", "REDUCE", "ALLTOALL_BASE", "ALLTOALL"},
)
GROUPS = (DEFAULT, ZERO)
