"""Causes within the rollout: both concern the all-reduce that vLLM's data-parallel engines do at every
step.
"""

from __future__ import annotations

from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose.causes.case import Case, judged
from lockstep.diagnose.model import Cause, Evidence


def offline_wave_race(case: Case) -> Cause | None:
    """Needs the step's all-reduce with a rank absent, and two signs more: first step of a wave, uneven
    progress, idle rank.
    """
    if not case.step_sync or not (case.absent or case.not_seen) or case.group is None:
        return None
    timeout = case.group.timeouts[0]
    missing = "and a rank is missing" if case.absent else "and not all are seen to wait"
    evidence = [
        Evidence.of(f"the all-reduce of an engine step: only engines that step are in it, {missing}", timeout)
    ]
    against: list[Evidence] = []
    if not case.absent:
        who = arithmetic.ranges(case.not_seen)
        against.append(Evidence(f"no line tells what rank {who} did: it may have waited as well"))
    signs = 0
    if position := arithmetic.wave_position(case):
        step, sentence = position
        signs += step == 1
        (evidence if step == 1 else against).append(sentence)
    uneven = arithmetic.uneven_progress(case.picture)
    idle = [
        mark
        for mark in case.picture.of("dump signal")
        if mark.origin.rank in _world_ranks(case) and "this local rank" not in mark.detail
    ]
    evidence += uneven
    evidence += [
        Evidence.of(
            f"rank {mark.origin.rank} was alive, waited in nothing, and only heard of the timeout", mark
        )
        for mark in idle[:1]
    ]
    signs += bool(uneven) + bool(idle)
    online = case.picture.of("coordinator", "server")
    against += [
        Evidence.of("a server with a coordinator tells every engine of a new wave", mark)
        for mark in online[:1]
    ]
    needed = 0 if signs >= 2 and case.absent else len(evidence) + 1
    return judged("offline-wave-race", evidence, against, decisive=bool(online), needed=needed)


def online_dense_dp_out_of_step(case: Case) -> Cause | None:
    """Needs the step's all-reduce and a coordinator, which keeps waves together; and ranks at different
    places.
    """
    online = case.picture.of("coordinator", "server")
    if not case.step_sync or case.group is None or not online:
        return None
    evidence = [
        Evidence.of("the all-reduce of an engine step did not find all ranks", case.group.timeouts[0]),
        Evidence.of("the engines are behind one server with a coordinator", online[0]),
    ]
    seqs = sorted({(t.seq, t.rank) for t in case.group.timeouts})
    if len({seq for seq, _ in seqs}) > 1:
        places = ", ".join(f"rank {rank} at {seq}" for seq, rank in seqs)
        evidence.append(Evidence.of(f"the ranks are at different steps: {places}", case.group.timeouts[-1]))
    against: list[Evidence] = []
    if (position := arithmetic.wave_position(case)) and position[0] == 1:
        against.append(position[1])
    return judged("online-dense-dp-out-of-step", evidence, against)


def _world_ranks(case: Case) -> set[int]:
    """Return the missing ranks' numbers in their half of the job."""
    ranks = case.reading.ranks if case.reading else None
    missing = (*case.absent, *case.not_seen)
    return {ranks[place] for place in missing if place < len(ranks)} if ranks else set()
