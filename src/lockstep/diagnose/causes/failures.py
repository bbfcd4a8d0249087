"""Causes outside of what ranks compute: something ended, broke, never began, or took too long.

A wait that ended (a timeout of any library) is never a cause, and what gave up on somebody who did not
answer is its consequence. So an end counts only if it came before anybody's patience ended.
"""

from __future__ import annotations

import re
from dataclasses import replace

from lockstep.diagnose.causes.case import Case, judged
from lockstep.diagnose.events import NO_NUMBER, Event, Mark
from lockstep.diagnose.model import Cause, Evidence
from lockstep.diagnose.sentences import members, sentence

_OUR_OWN = (-6, -15, 0, 134, 143)
"""Exit codes that a watchdog, an agent or a scheduler gives to a rank after the fact."""
_DEATHS = (
    "child exit", "killed", "crash", "engine died", "actor died", "node died", "loader died", "gpu fault",
    "cuda error",
    "no resources", "time limit", "ended from outside",
)  # fmt: skip
_MEMORY = ("gpu memory", "host memory")
_UNREACHED = ("connect timeout", "gloo connect", "port taken")
_PAIR = re.compile(r"key '\d+:\d+'|//cuda//\d+:\d+\b")  # the NCCL id of a send and its receive
_OF_THE_STORE = re.compile(r"server socket|EADDRINUSE|TCPStore|c10d|IP port|rdzv|MASTER_PORT")
_RAY_MEMORY = re.compile(r"node running low on memory|memory pressure \(OOM\)|Memory on the node")
_SYNC_NEAR = 60  # lines between a call of the weight sync in a traceback and the error that ends it


def out_of_memory_first(case: Case) -> Cause | None:
    """A message of exhausted memory. One is enough, for it says so itself; unless somebody waited before."""
    marks = case.picture.of(*_MEMORY)
    if not marks:
        return None
    early = case.earlier(marks)
    evidence = [Evidence.of(sentence(mark), mark) for mark in _named_first(early or marks)[:3]]
    against = [] if early else [_waited_before(case)]
    return judged("out-of-memory-first", evidence, against, decisive=not early, needed=1)


def _named_first(marks: list[Mark]) -> list[Mark]:
    """Put the line that names who it was before the first one, if that does not: Ray writes several of one
    end.
    """
    first = marks[0]
    if first.kind != "host memory" or first.origin.rank is not None or not _RAY_MEMORY.search(first.text):
        return marks
    mine = [mark for mark in marks if _RAY_MEMORY.search(mark.text) and mark.file == first.file]
    named = next((mark for mark in mine if mark.origin.rank is not None), None)
    node = next((mark for mark in mine if mark.peer), None)
    if named is not None and node is not None and named.peer is None:
        named = replace(named, peer=node.peer)
    best = named or node or first
    return [best, *(mark for mark in marks if mark.line != best.line or mark.file != best.file)]


def rank_died(case: Case) -> Cause | None:
    """A process is reported dead before anybody's patience ended, for another reason than memory."""
    picture = case.picture
    if case.earlier(picture.of(*_MEMORY)) or weight_sync_failures(case):
        return None
    deaths = [mark for mark in picture.of(*_DEATHS) if _by_itself(mark)]
    early = [mark for mark in case.earlier(deaths) if not picture.beside_a_wait(mark)]
    waited = bool(picture.waits or picture.of("shm wait"))
    found = [mark for mark in early if not _says_only_that_it_failed(mark) or waited]
    engines = [mark for mark in found if mark.kind == "engine died"]
    doubtful = bool(engines) and bool(case.earlier(picture.of("shm wait"))) and len(engines) == len(found)
    closed = case.earlier(picture.of("gloo closed", "nccl remote", "store closed"))
    evidence = [Evidence.of(sentence(mark), mark) for mark in _worst_first(early or deaths)[:3]]
    evidence += [Evidence.of(sentence(mark), mark) for mark in closed[:1]]
    evidence += [Evidence.of(sentence(mark), mark) for mark in case.earlier(picture.of("engine fatal"))[:1]]
    if not evidence:
        return None
    if deaths and not early and waited:
        return judged("rank-died", evidence, [_waited_before(case)], decisive=True)
    against = []
    if doubtful:
        against.append(
            Evidence.of(
                "somebody waited before: the engine may have been given up", picture.of("shm wait")[0]
            )
        )
    return judged("rank-died", evidence, against, needed=1 if found and not doubtful else len(evidence) + 1)


def weight_sync_interrupted(case: Case) -> Cause | None:
    """An error of the weight sync's own calls, before anybody's patience ended."""
    early = weight_sync_failures(case)
    late = case.picture.of("sync error")
    evidence = [Evidence.of(sentence(mark), mark) for mark in (early or late)[:3]]
    against = [] if early or not late else [_waited_before(case)]
    return judged("weight-sync-interrupted", evidence, against, decisive=bool(late and not early), needed=1)


def weight_sync_failures(case: Case) -> list[Mark]:
    """Return what failed in the weight sync: its own messages, and errors that end a traceback through its
    calls.
    """
    picture = case.picture
    calls = sorted((mark.file, mark.line) for mark in picture.of("sync call"))
    broken = picture.of("port taken", "nccl error", "hccl error", "nccl peer")
    through = (
        [
            mark
            for mark in broken
            if any(file == mark.file and 0 <= mark.line - line <= _SYNC_NEAR for file, line in calls)
        ]
        if calls
        else []
    )
    return sorted(
        case.earlier([*picture.of("sync error"), *through]), key=lambda mark: (mark.file, mark.line)
    )


def never_connected(case: Case) -> Cause | None:
    """A timeout at number 1 of all ranks with nothing completed, or a failure to meet at all."""
    picture = case.picture
    meeting: list[Mark] = picture.of(
        "connect timeout",
        "clients timeout",
        "store timeout",
        "unique id",
        "gloo connect",
        "port taken",
        "rendezvous",
    )
    meeting += [mark for mark in picture.of("store barrier", "barrier wait") if mark.detail.endswith(":1")]
    first = picture.first_wait
    meeting = [mark for mark in meeting if mark.kind != "port taken" or _OF_THE_STORE.search(mark.text)]
    met = [mark for mark in meeting if first is None or mark is first or _with_the_first(case, mark)]
    evidence = [Evidence.of(sentence(mark), mark) for mark in met[:3]]
    worked = _worked(case)
    if evidence:
        against = [worked] if worked else []
        busy = slow_storage_or_rank(case)
        if busy and not any(mark.kind in _UNREACHED for mark in met):
            against.append(
                Evidence("something slow had begun and not ended: who was waited for may have been busy")
            )
        if all(_PAIR.search(mark.text) for mark in met):
            against.append(
                Evidence("the key is that of a pair of ranks: the other may not have come to its send")
            )
        return judged("never-connected", evidence, against, needed=len(evidence) + 1 if against else 1)
    group = case.group
    if group is None or group.seq > 1 or group.seq == NO_NUMBER:
        return None
    at = group.works
    evidence.append(Evidence.of("the first collective of the group ran out of time", at[0]))
    statuses = [member.status for member in group.members.values() if member.status]
    evidence += [
        Evidence.of("nothing was ever completed in it", status)
        for status in statuses[:1]
        if status.completed < 1
    ]
    together = group.one and len(group.waiting) > 1 and not case.absent and not case.not_seen
    if together:
        evidence.append(Evidence.of(f"{members(case, group.waiting)} all wait in it", at[-1]))
    against = []
    if not together:
        who = members(case, case.absent) if case.absent else "of its peers no line"
        what = "did not come to it" if case.absent else "tells that they came to it"
        against.append(Evidence(f"{who} {what}: it may have come late, or never"))
    if worked:
        against.append(worked)
    return judged("never-connected", evidence, against, decisive=worked is not None, needed=3)


def slow_storage_or_rank(case: Case) -> Cause | None:
    """Something slow had begun and not ended when the others began to wait, or ended after they gave up."""
    picture = case.picture
    if not picture.waits:
        return None
    begun = case.earlier(picture.of("saving", "preparing", "storage"))
    begun = [m for m in begun if m.total is None or m.number != m.total]
    evidence: list[Evidence] = []
    if begun:
        last = begun[-1]
        ended = [m for m in case.earlier(picture.of("saved")) if m.file == last.file and m.line > last.line]
        steps = [
            m
            for m in case.earlier(picture.of("progress"))
            if m.file == last.file and m.line > last.line and m.number
        ]
        if not ended and (not steps or last.kind == "storage"):
            where = f" ({last.number} of {last.total})" if last.total else ""
            evidence.append(Evidence.of(f"the last thing that had begun: {last.detail}{where}", last))
    if not evidence:
        return None
    evidence += [
        Evidence.of("it went on after the others had given up", mark)
        for mark in case.later(picture.of("saving", "saved", "preparing", "storage"))[:1]
    ]
    if case.group is not None and len(case.absent) == 1 and not case.not_seen and len(case.group.waiting) > 1:
        who = members(case, case.absent)
        evidence.append(Evidence.of(f"the others wait; {who} does not", case.group.timeouts[0]))
    evidence += [
        Evidence.of("a reader of vLLM's shared memory was slow for minutes", mark)
        for mark in case.earlier(picture.of("shm wait"))[:1]
    ]
    return judged("slow-storage-or-rank", evidence, [])


def _with_the_first(case: Case, mark: Mark) -> bool:
    """Return whether a failure to meet is part of the first wait's own message, or came before it."""
    first = case.picture.first_wait
    if first is None or mark.file != first.file:
        return bool(case.earlier([mark]))
    return mark.line <= first.line + 3


def _worked(case: Case) -> Evidence | None:
    """Return what proves that the ranks had reached each other."""
    picture = case.picture
    files = case.group.files if case.group else {mark.file for mark in picture.marks}
    done = next((s for s in picture.statuses if s.completed > 0 and s.file in files), None)
    if done is not None:
        return Evidence.of("another group of the job did complete collectives", done)
    ready = [mark for mark in picture.of("init complete") if mark.file in files]
    if ready and len({mark.origin.rank for mark in ready}) >= (ready[0].total or 1):
        return Evidence.of(f"NCCL's set-up was complete on all {ready[0].total} ranks", ready[-1])
    steps = [mark for mark in case.earlier(picture.of("progress")) if mark.detail == "Train" and mark.number]
    return Evidence.of("the job had trained before", steps[-1]) if steps else None


def _by_itself(mark: Mark) -> bool:
    return mark.kind != "child exit" or mark.number not in _OUR_OWN


def _says_only_that_it_failed(mark: Mark) -> bool:
    """Return whether this is the exit code of a program that ended by itself: the reason is what it wrote
    before.
    """
    return mark.kind == "child exit" and mark.number is not None and 0 < mark.number < 128


def _worst_first(marks: list[Mark]) -> list[Mark]:
    return sorted(marks, key=_says_only_that_it_failed)


def _waited_before(case: Case) -> Evidence:
    first: Event | None = case.picture.first_wait
    what = "somebody's wait had ended before, or no clock says which came first"
    return Evidence(what) if first is None else Evidence.of(what, first)
