"""The catalogue: one rule per cause, each weighing what speaks for it and against it. See docs/causes.md."""

from __future__ import annotations

from lockstep.diagnose.causes.case import Case
from lockstep.diagnose.causes.failures import (
    never_connected,
    out_of_memory_first,
    rank_died,
    slow_storage_or_rank,
    weight_sync_interrupted,
)
from lockstep.diagnose.causes.rollout import offline_wave_race, online_dense_dp_out_of_step
from lockstep.diagnose.causes.trainer import mixed_batch, rank_dependent_control_flow
from lockstep.diagnose.model import Cause

# In order of precedence: what ended a rank explains every wait for it.
_RULES = (
    out_of_memory_first,
    rank_died,
    weight_sync_interrupted,
    never_connected,
    offline_wave_race,
    online_dense_dp_out_of_step,
    mixed_batch,
    rank_dependent_control_flow,
    slow_storage_or_rank,
)
_ORDER = {"found": 0, "possible": 1, "ruled out": 2}


def weigh(case: Case) -> tuple[Cause, ...]:
    """All causes that something speaks for, found ones first, in order of precedence within a standing."""
    causes = [cause for rule in _RULES if (cause := rule(case)) is not None]
    return tuple(sorted(causes, key=lambda cause: _ORDER[cause.standing]))


__all__ = ["Case", "weigh"]
