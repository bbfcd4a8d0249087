"""How the processes of a job came to their end, and what their ledgers lack then."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.record import PULSE_S, Ledger, Problem

from .groups import JobGroup


def terminated(ledger: Ledger) -> bool:
    """Whether it was told to end, and did not end by itself."""
    return ledger.ended_by == "SIGTERM"


def gone_at(ledger: Ledger, ledgers: Sequence[Ledger]) -> float:
    """When a process was gone; the latest time that its ledger allows, where another may be the cause.

    A trainer rank without an end was killed, and its peers fail for that. A process of the rollout may as
    well have lost the trainer, unless a worker's generation failed.
    """
    failed = [b.t for x in ledgers for b in x.boundaries if b.name == "generate failed"]
    trains = ledger.process is not None and ledger.process.side == "trainer"
    sure = trains or any(t >= ledger.last_t for t in failed)
    return ledger.last_t if ledger.ended is not None or sure else ledger.last_t + PULSE_S


def cut_short(
    ledgers: Sequence[Ledger], trainers: Sequence[Ledger], groups: Sequence[JobGroup]
) -> list[Problem]:
    """Ledgers of a finished job that stop before training did, or lack a boundary of their peers."""
    finish = max(b.t for x in trainers for b in x.boundaries if b.name == "train end")
    problems = {}
    for ledger in ledgers:
        if ledger.ended is None and ledger.last_t < finish - 2 * PULSE_S:
            early = f"stops {finish - ledger.last_t:.1f} s before the end of training"
            what = f"{early}: expected pulses until then"
            problems[ledger.path, ""] = Problem(ledger.path, ledger.lines, what)
    for cohort in (cohort for group in groups for cohort in group.cohorts):
        needed: dict[str, int] = {}
        for boundary in (b for m in cohort for b in m.ledger.boundaries if b.t <= finish):
            needed[boundary.name] = max(boundary.n, needed.get(boundary.name, 0))
        for ledger in (member.ledger for member in cohort):
            for name, n in needed.items():
                if ledger.passed.get(name, 0) < n:
                    what = f"lacks boundary {name} {n}, which a peer has passed"
                    problems[ledger.path, name] = Problem(ledger.path, ledger.lines, what)
    return list(problems.values())
