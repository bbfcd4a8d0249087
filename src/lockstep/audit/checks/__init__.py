"""The checks, in the order in which findings of one severity are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.audit.checks import (
    batch,
    boundaries,
    devices,
    engine,
    environment,
    nodes,
    options,
    ports,
    startup,
    timeouts,
)
from lockstep.audit.model import Finding, Job

CHECKS: tuple[Callable[[Job], Iterator[Finding]], ...] = (
    engine.check,
    options.check,
    nodes.check,
    environment.check,
    ports.check,
    startup.check,
    devices.check,
    batch.check,
    timeouts.check,
)


def run(job: Job, step: int | None = None) -> list[Finding]:
    """All findings on a job: hazards first, then warnings, notes, and what is right. `step`: the training
    step of a hang, if known."""
    findings = [finding for check in CHECKS for finding in check(job)]
    findings.extend(boundaries.check(job, step))
    findings.extend(job.notes)
    # Sorting keeps the checks' order within a severity.
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.severity.rank)


__all__ = ["CHECKS", "run"]
