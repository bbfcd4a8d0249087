"""Puts a remedy into a job."""

from __future__ import annotations

from dataclasses import replace

from lockstep.remedies.model import Tried
from lockstep.stacks.swift.spec import JobSpec


def cured(job: JobSpec, remedy: Tried) -> JobSpec:
    """The same job with what `remedy` changes in it."""
    change = remedy.change
    layout, size = job.layout, len(job.layout.rollout)
    return job.with_(
        remedy=remedy.name,
        rollout={**job.rollout, **change.rollout},
        rollout_env={**job.rollout_env, **change.rollout_env},
        trainer={**job.trainer, **change.trainer},
        layout=replace(layout, tensor_parallel=size) if change.tensor_parallel else layout,
        servers=size // layout.tensor_parallel if change.servers else job.servers,
    )
