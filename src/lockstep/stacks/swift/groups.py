"""Which groups a job of this stack uses when it comes through."""

from __future__ import annotations

from lockstep.stacks.swift.spec import JobSpec

CPU_SYNC = "VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION"
ALONE = ("independent ranks",)
"""Remedies under which the rollout's ranks have no group."""


def rollout_groups(spec: JobSpec) -> tuple[str, ...]:
    """Those in which the rollout's ranks keep step with each other."""
    if spec.remedy in ALONE or spec.layout.data_parallel // spec.servers < 2:
        return ()
    return ("rollout.dp.cpu" if spec.rollout_env.get(CPU_SYNC) == "1" else "rollout.dp",)


def expected_groups(spec: JobSpec) -> tuple[str, ...]:
    """Names of all groups that a job which came through has used on every rank.

    A trainer of one rank has no group of its own: its ZeRO-3 issues no collective.
    """
    trainer = ("trainer.world", "trainer.zero") if len(spec.layout.trainer) > 1 else ()
    sync = ["weight-sync", *(f"weight-sync#{server + 1}" for server in range(1, spec.servers))]
    return (*rollout_groups(spec), *trainer, *sync)
