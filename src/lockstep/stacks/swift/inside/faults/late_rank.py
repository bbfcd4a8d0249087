"""One data-parallel rank's worker pauses once, between adding its first and its second request of a
generation.

The twin of the incident's cause: a worker that is slow to add requests (image preprocessing, a loaded CPU).
Nothing is changed but the time at which the second request arrives.
"""

from __future__ import annotations

import os
import time
from typing import Any

from lockstep.env import ROLLOUT_RANK
from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.compat import place
from lockstep.stacks.swift.inside.rollout import ENGINE


def arm(rank: int, generation: int, seconds: float) -> None:
    """In DP rank `rank`'s worker: pause for `seconds` in its `generation`-th generation, counted from 1."""
    begun = 0
    added = 0

    def infer(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun, added
        begun += 1
        added = 0
        return original(*args, **kwargs)

    def add(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal added
        if added == 1 and begun == generation and int(os.environ.get(ROLLOUT_RANK, "-1")) == rank:
            print(
                f"lockstep: late rank: pausing {seconds} s before the second request of generation {begun}",
                flush=True,
            )
            time.sleep(seconds)
        added += 1
        return original(*args, **kwargs)

    wrap(f"{ENGINE}.infer", infer)
    wrap(f"{ENGINE}.async_infer", infer)
    wrap(place("add request"), add)
