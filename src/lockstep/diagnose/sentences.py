"""The sentences of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose.causes import Case
from lockstep.diagnose.events import Event, Mark, Timeout
from lockstep.diagnose.model import CAUSES, Cause, CauseId
from lockstep.diagnose.timeline import Member

_MEANS: dict[str, str] = {
    "dump signal": "a rank was told that another one timed out",
    "watchdog stuck": "a watchdog itself got no further",
    "gloo closed": "a peer's connection was closed",
    "gloo timeout": "a gloo operation timed out",
    "gloo connect": "gloo could not connect the ranks",
    "store timeout": "a rank waited in vain for a key of the store",
    "connect timeout": "a rank could not reach the store",
    "unique id": "a rank waited in vain for rank 0's NCCL id",
    "mismatch": "torch found the ranks' collectives to differ",
    "nccl remote": "NCCL lost a remote process",
    "engine died": "a vLLM process died",
    "engine fatal": "a vLLM engine failed",
    "shm wait": "a reader of vLLM's shared memory is slow",
    "child exit": "a rank ended",
    "gpu memory": "a GPU ran out of memory",
    "host memory": "a host ran out of memory",
    "sync error": "a call of the weight sync failed",
    "time limit": "the scheduler ended the job",
}


def event(found: Event) -> str:
    """What an event means, in a few words."""
    if isinstance(found, Timeout):
        return f"{found.op} {found.seq} ran out of time on rank {found.rank}"
    return _MEANS.get(found.kind, found.kind) if isinstance(found, Mark) else "status"


def group(case: Case) -> str:
    """The group by its best reading, or as the log prints it."""
    label = (
        str(case.group.label)
        if case.group and case.group.label
        else "a process group that the log does not name"
    )
    reading = case.reading
    if reading is None:
        return label
    if reading.component == "vLLM":
        return (
            f"the {reading.meaning} group of vLLM {' or '.join(reading.releases)} ({reading.layout}; {label})"
        )
    return f"{reading.group} ({label})"


def waiting(case: Case) -> str:
    """Who waited for whom, where."""
    assert case.group is not None
    timeout = case.group.at(case.group.seq)[0]
    size = f" of {timeout.numel_in} elements" if timeout.numel_in is not None else ""
    many = "ranks" if len(case.group.waiting) > 1 else "rank"
    text = f"{many} {arithmetic.ranges(case.group.waiting)} of {group(case)} "
    text += f"waited in {timeout.op} number {timeout.seq}{size}"
    return f"{text}, rank {arithmetic.ranges(case.absent)} did not take part" if case.absent else text


def conclusion(name: CauseId | None, case: Case, best: Cause | None) -> str:
    """The first thing to say."""
    if name is None:
        return "nothing to diagnose: no timeout, no failure and no warning of a hang in the input"
    why = CAUSES[name]
    if case.group is None:
        first = case.picture.first
        what = event(first) if first else "there are failures, but no collective timed out"
        return f"{what}: {why}"
    side = case.reading.side if case.reading else "unknown"
    half = {"rollout": "the rollout hung, the trainer only waited: ", "trainer": "the trainer hung: "}.get(
        side, ""
    )
    if best is None:
        return f"{half}{waiting(case)}. Why: {why}"
    if best.id in ("out-of-memory-first", "rank-died", "weight-sync-interrupted"):
        return f"{why}. What followed: {waiting(case)}"
    return f"{half}{waiting(case)}. Cause: {why}"


def open_questions(name: CauseId | None, case: Case, causes: Sequence[Cause]) -> tuple[str, ...]:
    """What is not known, and what would settle it."""
    found: list[str] = []
    if apart := case.picture.apart:
        last, first, days = apart
        found.append(
            f"whether the logs are of one job, as is taken for granted: the timeouts of {last.file} (line "
            f"{last.line}) and {first.file} (line {first.line}) are {days} days apart, too far for one hang. "
            "Give the logs of one run of one job"
        )
    if case.group is not None and len(case.readings) > 1:
        best, second = case.readings[:2]
        if second.score >= best.score - 1:
            found.append(
                f"whose group it was: {len(case.readings)} readings fit. The vLLM version and the parallel "
                "sizes settle it (the launch script, or the engine's first lines)"
            )
    silent = _silent(case)
    if silent:
        found.append(
            f"what rank {arithmetic.ranges(silent)} did: the input has no line of it. Its log tells, or, "
            "next time, a stack by py-spy"
        )
    if name == "offline-wave-race":
        found.append("that the engine is synchronous: the launch script tells (lockstep audit SCRIPT)")
        found.append("whether the model is dense: expert layers rule out independent ranks")
    if name == "online-dense-dp-out-of-step":
        found.append("whether the model is dense: with expert layers this is not the cause")
    if name == "mixed-batch":
        found.append("which samples the ranks had: log whether each batch has images")
    if name == "unknown":
        maybe = [cause.id for cause in causes if cause.standing == "possible"]
        if maybe:
            found.append(f"something speaks for {', '.join(maybe)}, but one sign is not enough")
        found.append(
            "which collectives each rank issued: run with TORCH_FR_BUFFER_SIZE=2000 (older torch: "
            "TORCH_NCCL_TRACE_BUFFER_SIZE) and TORCH_NCCL_DUMP_ON_TIMEOUT=1, then lockstep dumps DIR"
        )
        if case.group is None or len(case.group.files) == 1:
            found.append("the other half of the job: give the logs of trainer and rollout together")
    return tuple(found)


def _silent(case: Case) -> list[int]:
    if case.group is None:
        return []
    heard = {rank for file in case.group.files for rank in case.picture.ranks.get(file, ())}
    ranks = case.reading.ranks if case.reading else None
    return [
        place
        for place in case.absent
        if (ranks[place] if ranks and place < len(ranks) else place) not in heard
        and case.group.members.get(place, Member(place)).status is None
    ]
