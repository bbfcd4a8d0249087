"""A trainer rank that is slow, that dies, or whose reward function raises."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import threading
import time
from typing import Any

from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.inside.faults import tell
from lockstep.stacks.swift.inside.faults.after_step import after_step, own_rank


def slow(rank: int, step: int, seconds: float) -> None:
    """`rank` sleeps after `step`: slow, not wrong."""

    def act(control: Any) -> None:
        if own_rank() == rank:
            tell(f"rank {rank} sleeps {seconds} s after step {step}")
            time.sleep(seconds)

    after_step(step, act)


def slow_storage(rank: int, step: int, seconds: float) -> None:
    """`rank` waits for a lock on a file after `step`, as on storage that does not answer: slow, not wrong."""

    def act(control: Any) -> None:
        if own_rank() != rank:
            return
        tell(f"rank {rank} waits {seconds} s for a file after step {step}")
        with tempfile.NamedTemporaryFile() as held, open(held.name) as wanted:  # noqa: PTH123
            fcntl.flock(held, fcntl.LOCK_EX)
            release = threading.Timer(seconds, fcntl.flock, (held, fcntl.LOCK_UN))
            release.start()
            fcntl.flock(wanted, fcntl.LOCK_EX)
            release.join()

    after_step(step, act)


def dies(rank: int, step: int) -> None:
    """`rank` is killed after `step`, as the kernel does when memory runs out."""

    def act(control: Any) -> None:
        if own_rank() == rank:
            tell(f"rank {rank} is killed after step {step}")
            os.kill(os.getpid(), signal.SIGKILL)

    after_step(step, act)


def reward_raises(rank: int, step: int) -> None:
    """The job's reward function raises on `rank` for the first answers that it scores after `step`."""

    def score(original: Any, self: Any, completions: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["trainer_state"].global_step == step and own_rank() == rank:
            tell(f"rank {rank}'s reward function raises after step {step}")
            raise ValueError(f"cannot score {completions[0]!r}")
        return original(self, completions, *args, **kwargs)

    wrap(f"{_reward().__module__}:{_reward().__name__}.__call__", score)


def _reward() -> type:
    from swift.plugin.orm import orms

    reward: type = orms["shapes"]
    return reward
