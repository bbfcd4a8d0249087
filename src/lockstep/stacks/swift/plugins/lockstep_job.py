"""The file that a job loads with `--external_plugins`: puts the probe, and what the run asks for, into
ms-swift's processes.

ms-swift imports it by path, as `lockstep_job`, in the trainer's ranks, in the rollout's server and in its
workers. What to do is in the environment, since that reaches every child: `LOCKSTEP_RUN_DIR` (record there),
`LOCKSTEP_CPU` (no GPU), `LOCKSTEP_FAULT` (go wrong on purpose).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

from lockstep.env import CPU, ONE_GPU
from lockstep.stacks.swift.inside import cpu, faults, one_gpu, rollout


def _install() -> None:
    trains = Path(sys.argv[0]).stem == "rlhf"
    if os.environ.get(CPU):
        (cpu.apply_trainer if trains else cpu.apply_rollout)()
    if not trains and os.environ.get(ONE_GPU):
        one_gpu.apply_rollout()
    if trains:
        from lockstep.stacks.swift.inside import trainer

        trainer.watch_trainer()
        faults.arm("trainer", "rank")
    elif multiprocessing.parent_process() is None:
        rollout.watch_server()
    else:
        rollout.watch_worker()
        faults.arm("rollout", "worker")


_install()
