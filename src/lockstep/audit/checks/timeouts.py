"""Timeouts: which apply to what."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.audit.model import Finding, Job, Severity, Source


def check(job: Job) -> Iterator[Finding]:
    for process in job.processes:
        setting = process.command.env.get("NCCL_TIMEOUT")
        if setting is not None:
            yield Finding(
                "timeout-without-effect",
                Severity.NOTE,
                setting.place,
                "NCCL_TIMEOUT is read by neither NCCL nor torch",
                "A collective's timeout is given when its group is made: --ddp_timeout (1800 s by default) "
                "for the trainer, torch's 600 s for "
                "vLLM's groups.",
                (Source("torch 2.8.0", "torch/distributed/constants.py"),),
            )
