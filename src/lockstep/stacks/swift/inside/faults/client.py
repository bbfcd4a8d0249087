"""The trainer gives up a generation that the rollout answers all the same, later.

ms-swift's client sets no timeout; a proxy between the two, or a client that does, has one.
"""

from __future__ import annotations

import os
import time
from typing import Any

from lockstep.env import ROLLOUT_RANK
from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.inside.faults import tell
from lockstep.stacks.swift.inside.rollout import ENGINE


def gives_up(rank: int, generation: int, after_s: float, late_s: float) -> None:
    """Trainer: the `generation`-th request for completions (from 1) times out after `after_s`."""
    sent = 0

    def post(original: Any, self: Any, url: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal sent
        sent += url.endswith("/infer/")
        if url.endswith("/infer/") and sent == generation:
            tell(f"the client waits no more than {after_s} s for generation {generation}")
            kwargs["timeout"] = after_s
        return original(self, url, *args, **kwargs)

    wrap("requests.sessions:Session.post", post)


def answers_late(rank: int, generation: int, after_s: float, late_s: float) -> None:
    """Rollout: DP rank `rank`'s worker begins its `generation`-th generation `late_s` late, with all of its
    requests.
    """
    begun = 0

    def infer(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == generation and int(os.environ.get(ROLLOUT_RANK, "-1")) == rank:
            tell(f"rank {rank}'s worker begins generation {generation} {late_s} s late")
            time.sleep(late_s)
        return original(*args, **kwargs)

    wrap(f"{ENGINE}.infer", infer)
