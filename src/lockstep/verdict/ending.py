"""How the processes of a job came to their end, and what their ledgers lack then."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lockstep.record import PULSE_S, SILENT_S, Ledger, Problem

from .groups import JobGroup

TOLD = ("SIGTERM", "SIGINT")
"""Signals by which a user, a scheduler or a launcher ends a process that is well."""
TOGETHER_S = 2.0
"""Processes that end within this time of each other may have been ended together."""


def told(ledger: Ledger) -> bool:
    """Whether it was told to end, and did not end by itself."""
    return ledger.ended_by in TOLD


def gone_at(ledger: Ledger, ledgers: Sequence[Ledger]) -> float:
    """When a process was gone; the latest time that its ledger allows, where another may be the cause.

    A trainer rank without an end was killed, and its peers fail for that. A process of the rollout may as
    well have lost the trainer, unless a worker's generation failed.
    """
    failed = [b.t for x in ledgers for b in x.boundaries if b.name == "generate failed"]
    sure = _trains(ledger) or any(t >= ledger.last_t for t in failed)
    return ledger.last_t if ledger.ended is not None or sure else ledger.last_t + PULSE_S


def proven_first(ledger: Ledger, ledgers: Sequence[Ledger]) -> bool:
    """Whether a process that is gone went before the job was ended, and not with all the others.

    Who was told to end did not go by itself. Of the others it takes a trainer rank that went on without it,
    or that ended for a reason of its own after it; what ends together proves no order.
    """
    if told(ledger):
        return False
    peers = [x for x in ledgers if _trains(x) and x is not ledger]
    asked = [x.ended for x in peers if x.ended is not None and told(x)]
    own = [x.ended for x in peers if x.ended is not None and not told(x)]
    # Who ended by itself in the same moment may have been interrupted, if its probe would not have said so.
    apart = 0.0 if all(_tells(x) for x in (ledger, *peers)) else TOGETHER_S
    if _trains(ledger):
        if ledger.ended is None:  # it was killed: a process that is told to end writes so
            return all(ledger.last_t <= t for t in (*own, *asked))
        rest = [x.last_t for x in peers if x.ended is None]
        before = all(ledger.ended <= t for t in asked) and all(t - ledger.ended > apart for t in own)
        return before and (bool(asked or own) or any(t - ledger.ended >= TOGETHER_S for t in rest))
    if own and all(min(own) < t for t in asked):
        together = not asked and max(own) - min(own) < TOGETHER_S
        return gone_at(ledger, ledgers) + (apart if together else 0.0) <= min(own)
    went_on = min((x.last_t for x in peers), default=-math.inf)
    return ledger.last_t + SILENT_S <= went_on


def _tells(ledger: Ledger) -> bool:
    """Whether its probe notes every signal that tells it to end, as those do that write monotonic times."""
    return ledger.process is not None and ledger.process.m is not None


def _trains(ledger: Ledger) -> bool:
    return ledger.process is not None and ledger.process.side == "trainer"


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
