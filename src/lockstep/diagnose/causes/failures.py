"""Causes outside of what ranks compute: something ended, broke, never began, or took too long."""

from __future__ import annotations

from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose.causes.case import Case, judged
from lockstep.diagnose.events import Mark
from lockstep.diagnose.model import Cause, Evidence

_ABORT, _TERMINATE = -6, -15
_OUR_OWN = (
    _ABORT,
    _TERMINATE,
    0,
    134,
    143,
)  # what a watchdog, an agent or a scheduler does to a rank after the fact


def out_of_memory_first(case: Case) -> Cause | None:
    """A message of exhausted memory. One is enough, for it says so itself; unless the timeouts came first."""
    marks = case.picture.of("gpu memory", "host memory")
    if not marks:
        return None
    early = case.earlier(marks)
    evidence = [Evidence.of("memory ran out", mark) for mark in (early or marks)[:3]]
    against = []
    if not early:
        against.append(
            _waited_before(case, "a collective had timed out before, or no clock says which came first")
        )
    return judged("out-of-memory-first", evidence, against, decisive=not early, needed=1)


def rank_died(case: Case) -> Cause | None:
    """A process is reported dead before anybody timed out, for another reason than memory."""
    if case.earlier(case.picture.of("gpu memory", "host memory")):
        return None
    deaths = [
        m for m in case.picture.of("child exit", "engine died", "engine fatal", "time limit") if _by_itself(m)
    ]
    closed = case.picture.of("gloo closed", "nccl remote")
    early = case.earlier(deaths)
    evidence = [Evidence.of(_death(mark), mark) for mark in (early or deaths)[:3]]
    evidence += [Evidence.of("a peer's connection was closed", mark) for mark in case.earlier(closed)[:1]]
    if not evidence:
        return None
    against = []
    if not early and case.picture.groups:
        against.append(
            _waited_before(case, "a collective had timed out before: the deaths may be its consequence")
        )
        return judged("rank-died", evidence, against, decisive=bool(deaths))
    return judged("rank-died", evidence, against, needed=1 if early else 2)


def weight_sync_interrupted(case: Case) -> Cause | None:
    """An error of the weight sync's own calls, before anybody timed out."""
    marks = case.picture.of("sync error")
    early = case.earlier(marks)
    evidence = [Evidence.of("a call of the weight sync failed", mark) for mark in (early or marks)[:3]]
    against = []
    if marks and not early:
        against.append(
            _waited_before(case, "a collective had timed out before, or no clock says which came first")
        )
    return judged("weight-sync-interrupted", evidence, against, decisive=bool(marks and not early), needed=1)


def never_connected(case: Case) -> Cause | None:
    """A timeout at number 1 of all ranks with nothing completed, or a failure to meet at all."""
    meeting = case.picture.of("connect timeout", "store timeout", "unique id", "gloo connect")
    evidence = [Evidence.of("the ranks failed to meet", mark) for mark in case.earlier(meeting)[:3]]
    if evidence:
        return judged("never-connected", evidence, [], needed=1)
    group = case.group
    if group is None or group.seq > 1:
        return None
    at = group.at(group.seq)
    evidence.append(Evidence.of("the first collective of the group ran out of time", at[0]))
    statuses = [member.status for member in group.members.values() if member.status]
    evidence += [
        Evidence.of("nothing was ever completed in it", status)
        for status in statuses[:1]
        if status.completed < 1
    ]
    if len(at) > 1 and not case.absent:
        evidence.append(Evidence.of(f"ranks {arithmetic.ranges(group.waiting)} all wait in it", at[-1]))
    against = []
    if case.absent or len(at) == 1:
        who = f"rank {arithmetic.ranges(case.absent)}" if case.absent else "its peers"
        against.append(Evidence(f"{who} did not time out in it: it may have come late, or never"))
    done = next((s for s in case.picture.statuses if s.completed > 0 and s.file in group.files), None)
    if done is not None:
        against.append(Evidence.of("another group of the job did complete collectives", done))
    return judged("never-connected", evidence, against, decisive=done is not None, needed=3)


def slow_storage_or_rank(case: Case) -> Cause | None:
    """Something slow had begun and not ended when the others began to wait, or ended after they gave up."""
    picture = case.picture
    if case.group is None:
        return None
    begun = case.earlier(picture.of("saving", "preparing", "storage"))
    begun = [m for m in begun if m.total is None or m.number != m.total]
    evidence: list[Evidence] = []
    if begun:
        ended = [
            m
            for m in case.earlier(picture.of("saved"))
            if m.file == begun[-1].file and m.line > begun[-1].line
        ]
        steps = [
            m
            for m in case.earlier(picture.of("progress"))
            if m.file == begun[-1].file and m.line > begun[-1].line and m.number
        ]
        if not ended and (not steps or begun[-1].kind == "storage"):
            evidence.append(Evidence.of(f"the last thing that had begun: {begun[-1].detail}", begun[-1]))
    evidence += [
        Evidence.of("it went on after the others had given up", mark)
        for mark in case.later(picture.of("saving", "saved", "preparing", "storage"))[:1]
        if evidence
    ]
    if evidence and len(case.absent) == 1:
        evidence.append(
            Evidence.of(f"all ranks but one wait; rank {case.absent[0]} does not", case.group.timeouts[0])
        )
    evidence += [
        Evidence.of("a reader of vLLM's shared memory was slow for minutes", mark)
        for mark in case.earlier(picture.of("shm wait"))[:1]
        if evidence
    ]
    return judged("slow-storage-or-rank", evidence, [])


def _by_itself(mark: Mark) -> bool:
    return mark.kind != "child exit" or mark.number not in _OUR_OWN


def _death(mark: Mark) -> str:
    if mark.kind == "child exit" and mark.number is not None:
        signal = f", signal {-mark.number}" if mark.number < 0 else ""
        return f"a rank ended with exit code {mark.number}{signal}"
    return f"a process ended: {mark.detail}"


def _waited_before(case: Case, what: str) -> Evidence:
    first = case.picture.first_timeout
    return Evidence(what) if first is None else Evidence.of(what, first)
