"""A weight sync that reaches all rollout workers but one.

ms-swift's server sends the sync to its workers without waiting for an answer; a worker that fails logs it
and goes on.
"""

from __future__ import annotations

import os
from typing import Any

from lockstep.env import ROLLOUT_RANK
from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.inside.faults import tell


def lost(rank: int, sync: int) -> None:
    """DP rank `rank`'s worker fails in its `sync`-th weight sync (from 1), before its engine core hears of
    it.
    """
    begun = 0

    def collective_rpc(original: Any, self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        begun += method == "update_flattened_params"
        if method == "update_flattened_params" and begun == sync and int(os.environ[ROLLOUT_RANK]) == rank:
            tell(f"rank {rank}'s worker fails in weight sync {sync}")
            raise RuntimeError(f"weight sync {sync} does not reach engine core {rank}")
        return original(self, method, *args, **kwargs)

    wrap("vllm.v1.engine.llm_engine:LLMEngine.collective_rpc", collective_rpc)
