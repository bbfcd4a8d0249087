"""Which groups of a job must have counted something, so that "in step" says something.

Without this a probe that sees nothing (another release's groups, a recorder that is off) would find every job
in step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockstep.record import Ledger
from lockstep.stacks.swift.spec import JobSpec
from lockstep.verdict.groups import gather, order

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


def silent(groups: Iterable[str], ledgers: Sequence[Ledger]) -> str:
    """Which of `groups` have counted nothing on a rank, in words; empty if all have."""
    there = {group.name: group for group in gather(order(ledgers))[0]}
    told = []
    for name in groups:
        if name not in there:
            told.append(f"there is no group {name}")
            continue
        group = there[name]
        counted = [rank for rank, member in group.members.items() if member.issued]
        if idle := [rank for rank in range(len(group.ranks)) if rank not in counted]:
            told.append(f"group {name} has counted nothing on rank {', '.join(map(str, idle))}")
    return f"{'; '.join(told)}: what the probe does not see cannot be in step" if told else ""
