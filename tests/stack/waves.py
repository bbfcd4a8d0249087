"""Two data-parallel ranks (`wave_rank.py`) run through rounds on whichever release of vLLM is installed, and
watched from outside: the probe knows only the pinned one.

A rank is `idle` if its engine core is blocked in its queue, and `in a step` if it is in one, or in the
question whether the wave is over. Who is silent for `SILENCE_S` is stuck.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.run.ports import free_ports
from lockstep.run.process import Command
from lockstep.run.process_tree import ProcessTree

HERE = Path(__file__).parent
START_S, SILENCE_S = 240.0, 20.0
PAUSE = 3.0
"""Seconds; long enough for 32 steps of the peer's engine core."""

PLAIN = [[2, 0.0, 0.0], [2, 0.0, 0.0]]
LATE = [[4, PAUSE, 0.0], [4, 0.0, 0.0]]
BOTH_LATE = [[4, PAUSE, 0.0], [4, PAUSE, 0.05]]
NOTHING = [[0, 0.0, 0.0], [3, 0.0, 0.0]]
FAILS = [[1, "raise", 0.0], [3, 0.0, 0.0]]

CPU_BUILD = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass
class Outcome:
    said: list[list[str]]
    tokens: list[list[str]]
    """Per rank `request: tokens` in the order of the answers."""
    places: list[str] = field(default_factory=list)
    """Empty if all ranks came through."""
    stacks: str = ""


class RanksFailedError(AssertionError):
    """A rank ended before it was through; with the end of its log."""


def run(
    folder: Path,
    model: Path,
    rounds: list[Any],
    *,
    size: int = 2,
    cure: bool = False,
    expert_parallel: bool = False,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Raises RanksFailedError."""
    folder.mkdir(parents=True)
    port = free_ports(1, "127.0.0.1")[0]
    cores = sorted(os.sched_getaffinity(0))
    bound = "|".join(str(cores[rank % len(cores)]) for rank in range(size))
    environment = os.environ | CPU_BUILD | {"VLLM_CPU_OMP_THREADS_BIND": bound, "PYTHONPATH": str(HERE)}
    options = [*(["open"] if cure else []), *(["experts"] if expert_parallel else [])]
    with ProcessTree() as tree:
        commands = []
        for rank in range(size):
            argv = [sys.executable, str(HERE / "wave_rank.py"), str(rank), str(size), str(port), str(folder)]
            argv += [str(model), json.dumps(rounds), *options]
            log = folder / f"rank{rank}.log"
            commands.append(tree.start(f"rank {rank}", argv, env=environment | dict(env or {}), log=log))
        stuck = _watch(folder, commands)
        outcome = Outcome(_lines(folder, "rank", size), _lines(folder, "tokens", size))
        if stuck:
            for command in commands:
                stack = _core_stack([process.pid for process in command.descendants()])
                outcome.places.append(_place(stack))
                outcome.stacks += f"{command.name}\n{stack}\n"
        return outcome


def _lines(folder: Path, kind: str, size: int) -> list[list[str]]:
    files = [folder / f"{kind}-{rank}" for rank in range(size)]
    return [file.read_text().splitlines() if file.exists() else [] for file in files]


def _watch(folder: Path, commands: list[Command]) -> bool:
    """Whether they are stuck; False if they came through."""
    begun = changed = time.monotonic()
    before: list[list[str]] = []
    while True:
        time.sleep(0.5)
        over = [command.poll() is not None for command in commands]
        said = _lines(folder, "rank", len(commands))
        through = [lines[-1:] == ["done"] for lines in said]
        if all(through):
            return False
        now = time.monotonic()
        if said != before:
            before, changed = said, now
        if all(said) and now - changed > SILENCE_S:
            return True
        failed = any(ended and not done for ended, done in zip(over, through, strict=True))
        if failed or now - begun > START_S:
            logs = "\n".join(command.log.read_text()[-6000:] for command in commands)
            raise RanksFailedError(f"{'a rank ended' if failed else 'too slow'}; they said {said}\n{logs}")


def _core_stack(pids: list[int]) -> str:
    py_spy = Path(sys.executable).with_name("py-spy")
    for pid in pids:
        done = subprocess.run(
            [str(py_spy), "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=60, check=False
        )
        for thread in done.stdout.split("\n\n") if "run_busy_loop" in done.stdout else ():
            if "run_busy_loop" in thread or "_process_input_queue" in thread:
                return thread
    return ""


def _place(stack: str) -> str:
    if "_process_input_queue" in stack:
        return "in a call" if "collective_rpc" in stack else "idle"
    busy = ("_process_engine_step", "execute_dummy_batch", "_has_global_unfinished_reqs")
    return "in a step" if any(name in stack for name in busy) else "nowhere"
