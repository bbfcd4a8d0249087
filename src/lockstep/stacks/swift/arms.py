"""The arms of the incident's job: as it is, with the fault, and with the fault and the remedy; on GPUs also
with the fault made by SIGSTOP."""

from __future__ import annotations

from functools import partial
from typing import Any

from lockstep.stacks.base import Arm
from lockstep.stacks.swift.outside_faults import stop_worker
from lockstep.stacks.swift.spec import JobSpec
from lockstep.verdict import Kind

LATE_RANK: dict[str, Any] = {"name": "late rank", "rank": 0, "generation": 3, "seconds": 6.0}


def arms(job: JobSpec) -> list[Arm]:
    """Return the arms of a job for its device."""
    return stress_arms(job) if job.device == "cpu" else gpu_arms(job)


def stress_arms(
    job: JobSpec, fault: dict[str, Any] | None = None, remedy: str = "independent ranks"
) -> list[Arm]:
    """Control, without the fix, with the fix."""
    fault = fault or LATE_RANK
    steps = int(str(job.trainer["max_steps"]))
    through = tuple(
        boundaries(steps, int(str(job.trainer["eval_steps"])), int(str(job.trainer["save_steps"]))).items()
    )
    late = int(fault["rank"])
    ranks = range(job.layout.data_parallel)
    return [
        Arm(job.with_(name="control"), Kind.IN_STEP, boundaries=through),
        Arm(
            job.with_(name="without the fix", fault=fault),
            Kind.STUCK,
            group="rollout.dp",
            waiting=(late,),
            absent=tuple(rank for rank in ranks if rank != late),
        ),
        Arm(job.with_(name="with the fix", fault=fault, remedy=remedy), Kind.IN_STEP, boundaries=through),
    ]


def boundaries(steps: int, eval_steps: int, save_steps: int) -> dict[str, int]:
    """How often a trainer rank passes what. ms-swift evaluates and saves once more at the last step
    (3.10.3)."""
    evals = steps // eval_steps + (steps % eval_steps > 0)
    saves = steps // save_steps + (steps % save_steps > 0)
    return {"train begin": 1, "step": steps, "weight sync end": steps, "eval begin": evals, "eval end": evals,
            "save begin": saves, "save end": saves, "train end": 1}  # fmt: skip


def gpu_arms(job: JobSpec) -> list[Arm]:
    """The arms of the CPU, and the same fault with nothing patched: SIGSTOP for rank 0's worker."""
    arms = stress_arms(job)
    stop = partial(
        stop_worker, rank=0, generation=int(LATE_RANK["generation"]), run_s=0.06, stop_s=3.0, times=40
    )
    _, without, cured = arms
    return [
        *arms,
        Arm(
            job.with_(name="stopped, without the fix"),
            without.expected,
            group=without.group,
            waiting=without.waiting,
            absent=without.absent,
            outside=stop,
        ),
        Arm(
            job.with_(name="stopped, with the fix", remedy=cured.spec.remedy),
            cured.expected,
            boundaries=cured.boundaries,
            outside=stop,
        ),
    ]
