"""The sentences of a diagnosis. The first says who, when, for whom and in what, as far as lines tell it."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lockstep.causes import CAUSES
from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose.events import NO_NUMBER, Event, Mark, Status, Timeout
from lockstep.diagnose.groups_seen import place as _place_of
from lockstep.diagnose.kinds import KINDS
from lockstep.diagnose.model import Cause, CauseId, Evidence

if TYPE_CHECKING:
    from lockstep.diagnose.causes.case import Case

_OF_MARKS = ("out-of-memory-first", "rank-died", "weight-sync-interrupted")
_ONE_MESSAGE = 100  # lines in which a traceback ends with what it is about
_PEERS_NEAR = 12  # lines around an NCCL error in which NCCL names the peer


def sentence(found: Event) -> str:
    """Return what an event means, with who and when."""
    if isinstance(found, Timeout):
        size = "" if found.numel_in is None else f" of {found.numel_in} elements"
        return f"{who(found)} gave up waiting in {found.op} number {found.seq}{size}{at(found)}"
    if isinstance(found, Status):
        return f"{who(found)}: last enqueued {found.enqueued}, last completed {found.completed}"
    assert isinstance(found, Mark)
    number = found.number
    says = KINDS[found.kind].says
    if found.kind == "dump signal" and "this local rank" in found.detail:
        says = "{who} found{at} that a collective of its own timed out"
    text = says.format(
        who=_subject(found),
        at=at(found),
        time=clock(found) or "the end",
        d=_named(found),
        n="?" if number is None else number,
        t=found.total,
        peer=found.peer or "a peer",
        on=f" on node {found.peer}" if found.peer else "",
        peers="",
        ranks=ranks(found.ranks) if found.ranks else "a rank",
        for_ranks=f" for {ranks(found.ranks)}" if found.ranks else "",
        signal=_signal(number),
    )
    return text.replace(" waited ? ms for them", " waited for them").replace("waited ? ms in", "waited in")


def ranks(numbers: Iterable[int]) -> str:
    """1, 2, 3 -> ranks 1-3"""
    numbers = sorted(set(numbers))
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {arithmetic.ranges(numbers)}"


def members(case: Case, places: Iterable[int]) -> str:
    """Return ranks of a group by their rank in the job, as far as lines map places to it.

    The places of a group of all ranks are the job's ranks. Of another group a place that no line maps is said
    to be a place.
    """
    found, places = case.group, sorted(set(places))
    assert found is not None
    worlds = {rank: member.world_rank for rank, member in found.members.items()}
    if not found.one:
        seen = [
            t.origin.rank
            for t in found.timeouts
            if t.origin.rank is not None and _place_of(t, t.group) in places
        ]
        return ranks(seen or places)
    told = case.reading.ranks if case.reading and case.reading.side == "rollout" else None
    for place in case.absent if told else ():
        worlds.setdefault(place, told[place] if told and place < len(told) else None)
    if all(world in (None, rank) for rank, world in worlds.items()):
        return ranks(places)
    known = [world for place in places if (world := worlds.get(place)) is not None]
    unknown = [place for place in places if worlds.get(place) is None]
    if not unknown:
        return ranks(known)
    nameless = f"place{'s' if len(unknown) > 1 else ''} {arithmetic.ranges(unknown)} of the group"
    return f"{ranks(known)} and {nameless}" if known else nameless


def _subject(mark: Mark) -> str:
    """Return who a mark is about: of an exit code, the process that the agent names."""
    name = who(mark)
    return (
        f"a process ({mark.detail})"
        if mark.kind == "child exit" and name == "a process" and mark.detail
        else name
    )


def who(found: Event) -> str:
    """Return who wrote a line: its rank, its process, or `a process`."""
    origin = found.origin
    rank = origin.rank
    if rank is None and isinstance(found, Timeout):
        rank = found.rank
    if rank is None and isinstance(found, Timeout | Mark) and found.group:
        rank = found.group.rank
    if rank is not None:
        return f"rank {rank}"
    if origin.process:
        pid = f" (pid {origin.pid})" if origin.pid else ""
        return f"{origin.process}{pid}"
    return "a process"


def clock(found: Event) -> str:
    """Return the time of day of a line, or nothing."""
    when = found.origin.when
    if when is None:
        return ""
    seconds = int(when) % 86_400
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def at(found: Event) -> str:
    time = clock(found)
    return f" at {time}" if time else ""


def _named(mark: Mark) -> str:
    """Return the detail as people name it."""
    if mark.kind == "gpu memory":
        return mark.detail if mark.detail in ("NPU", "XPU", "MUSA", "MLU") else "GPU"
    if mark.kind == "ended from outside" and mark.detail.isdigit():
        return _signal(-int(mark.detail)).strip(" ()") or f"signal {mark.detail}"
    return mark.detail


def _signal(number: int | None) -> str:
    code = -number if number is not None and number < 0 else (number or 0) - 128
    try:
        return f" ({signal.Signals(code).name})" if code > 0 else ""
    except ValueError:
        return ""


def group(case: Case) -> str:
    """Return the group by its best reading, or as the log prints it."""
    label = (
        str(case.group.label)
        if case.group and case.group.label
        else "a process group that the log does not name"
    )
    reading = case.reading
    if reading is None or any(other.score >= reading.score for other in case.readings[1:]):
        return label  # several readings fit as well
    if reading.component == "vLLM":
        return (
            f"the {reading.meaning} group of vLLM {' or '.join(reading.releases)} ({reading.layout}; {label})"
        )
    return f"{reading.group} ({label})"


def waiting(case: Case) -> str:
    """Return who waited for whom, where. Sizes and operations that differ are said of each rank."""
    found = case.group
    assert found is not None
    works = found.works
    different = {(timeout.op, timeout.numel_in) for timeout in works}
    if len(different) > 1 and found.one:
        ways = ", ".join(f"{_ranks_with(case, works, way)} in {_work(*way)}" for way in _in_order(works)[:3])
        text = f"at number {found.seq} of {group(case)} {ways}"
        return text + (f", and {len(different) - 3} other ways" if len(different) > 3 else "")
    here = [rank for rank in found.waiting if _waits_at(case, rank)]
    seq = None if found.seq == NO_NUMBER else found.seq
    text = f"{members(case, here)} of {group(case)} waited in {_work(*_key(works[0]), seq)}"
    if other := [rank for rank in found.waiting if rank not in set(here)]:
        numbers = {found.members[rank].waits_in or 0 for rank in other}
        text += f", {members(case, other)} in number {arithmetic.ranges(numbers)}"
    if case.absent:
        text += f"; {members(case, case.absent)} did not come to it"
    elif not found.one:
        text += ", and the log does not tell its groups apart"
    elif case.not_seen:
        text += f"; no line tells what {members(case, case.not_seen)} did"
    elif case.size is None and len(here) == 1 and not other:
        text += "; no line tells " + (
            "whether others came to it" if _others_write(case, here[0]) else "of its peers"
        )
    if late := arithmetic.standing_watchdog(found):
        text += f"; {late[0].text}"
    return text


def _others_write(case: Case, place: int) -> bool:
    """Return whether the input has telling lines of other ranks than the one at a place."""
    assert case.group is not None
    world = case.group.members[place].world_rank
    mine = place if world is None else world
    return any(rank != mine for found in case.picture.ranks.values() for rank in found)


def _error_before(case: Case) -> str:
    """Return the sentence of an error that another rank had before anybody gave up waiting, or nothing."""
    assert case.group is not None
    waiting_ranks = {
        place if member.world_rank is None else member.world_rank
        for place, member in case.group.members.items()
        if member.waits
    }
    errors = [
        mark
        for mark in case.earlier(case.picture.of("disk full", "exception"))
        if mark.origin.rank is not None and mark.origin.rank not in waiting_ranks
    ]
    errors.sort(key=lambda mark: mark.kind == "exception")
    return f"{sentence(errors[0])}; " if errors else ""


def _waits_at(case: Case, rank: int) -> bool:
    assert case.group is not None
    return case.group.members[rank].waits_in == case.group.seq


def _key(timeout: Timeout) -> tuple[str, int | None]:
    return timeout.op, timeout.numel_in


def _in_order(works: Sequence[Timeout]) -> list[tuple[str, int | None]]:
    return list(dict.fromkeys(map(_key, works)))


def _ranks_with(case: Case, works: Sequence[Timeout], way: tuple[str, int | None]) -> str:
    found = (t for t in works if _key(t) == way)
    return f"{members(case, (t.rank if t.rank is not None else t.origin.rank or 0 for t in found))} waited"


def _work(op: str, elements: int | None, seq: int | None = None) -> str:
    number = "" if seq is None else f" number {seq}"
    return f"{op}{number}" + ("" if elements is None else f" of {elements} elements")


def conclusion(name: CauseId | None, case: Case, best: Cause | None) -> str:
    """Return the first thing to say."""
    if name is None:
        return "nothing to diagnose: no timeout, no failure and no warning of a hang in the input"
    why = CAUSES[name].sentence
    if best is not None and best.id in _OF_MARKS:
        text = best.evidence_for[0].text
        followed = f"; {waiting(case)}" if case.group else _others_waited(case)
        return f"{text}{followed}"
    if best is not None and best.id == "never-connected" and case.picture.role("wait", "end"):
        met = best.evidence_for[0].text
        return f"{met}{f'; {waiting(case)}' if case.group else ''}. Cause: they did not reach each other"
    if case.group is None:
        return f"{_first(case)}. {'Cause' if best else 'Why'}: {why}"
    side = case.reading.side if case.reading else "unknown"
    half = ""
    if case.two_sides and side == "rollout":
        half = "the rollout hung, the trainer only waited: "
    elif case.two_sides and side == "trainer":
        half = "the trainer hung: "
    if best is None:
        return f"{half}{_error_before(case)}{waiting(case)}. Why: {why}"
    return f"{half}{waiting(case)}. Cause: {why}"


def _others_waited(case: Case) -> str:
    late = [mark for mark in case.later(case.picture.role("wait")) if mark.origin.rank is not None]
    waited = {mark.origin.rank for mark in late if mark.origin.rank is not None}
    return f"; {ranks(waited)} waited" if waited else ""


def _first(case: Case) -> str:
    """Return the sentence of a failure without a timed-out group: the first one, with the peer that NCCL
    names.
    """
    picture = case.picture
    first = picture.first
    if first is None:
        several = [*picture.role("wait", "end", "error"), *picture.role("effect", "warning")]
        return sentence(several[0]) if several else "there are failures, but no collective timed out"
    if not isinstance(first, Mark):
        return sentence(first)
    if first.kind == "exception":
        first = next(
            (
                mark
                for mark in picture.marks
                if mark.file == first.file
                and 0 < mark.line - first.line <= _ONE_MESSAGE
                and mark.failure
                and mark.kind not in ("exception", "closing signal", "child exit", "killed with the rest")
            ),
            first,
        )
    if first.kind == "store timeout":
        same = (
            mark for mark in picture.of("unique id") if (mark.file, mark.line) == (first.file, first.line)
        )
        first = next(same, first)
    text = sentence(first)
    alike = {who(mark) for mark in picture.of(first.kind)} - {who(first)}
    if alike and first.role == "wait":
        text += f"; {len(alike)} more report the same ({', '.join(sorted(alike)[:8])})"
    if first.kind in ("dump signal", "watchdog stuck", "watchdog silent"):
        text += _own_status(case, first)
    if first.kind in ("nccl error", "hccl error", "nccl remote"):
        near = [
            mark
            for mark in picture.of("nccl peer")
            if mark.file == first.file and abs(mark.line - first.line) <= _PEERS_NEAR
        ]
        if near:
            text += f"; its peer is {near[0].peer} ({near[0].detail})"
    errors = picture.of("exception")
    if first.kind == "exception" and errors and errors[-1].detail != first.detail:
        text += f"; the last error is: {errors[-1].detail}"
    elif first.role not in ("error", "wait") and errors:
        text += f"; the log quotes the error: {errors[0].detail}"
    if first.kind == "hccl timeout" and (lost := picture.of("hccl heartbeat")):
        text += f"; {sentence(lost[0])}"
    if first.kind == "kv transfer" and picture.first_wait:
        text += f"; {sentence(picture.first_wait)}"
    if first.kind != "gil" and (held := picture.of("gil")):
        text += f"; {sentence(held[0])}"
    if first.role in ("wait", "warning"):
        given_up = case.later(picture.of("engine died", "engine fatal"))[:1]
        if given_up:
            text += f"; {sentence(given_up[0])}, which is its consequence"
    return text


def _own_status(case: Case, mark: Mark) -> str:
    """Return in what a rank waits that has no timeout of its own, from its status line."""
    for status in case.picture.statuses:
        mine = (status.file, status.origin.rank) == (mark.file, mark.origin.rank)
        if mine and 0 <= status.completed < status.enqueued:
            return (
                f"; by its own status it waits in number {status.completed + 1} of {status.group} "
                f"(last completed {status.completed}, last enqueued {status.enqueued})"
            )
    return ""


def open_questions(name: CauseId | None, case: Case, causes: Sequence[Cause]) -> tuple[str, ...]:
    """Return what is not known, and what would settle it."""
    found: list[str] = []
    if apart := case.picture.apart:
        last, first, days = apart
        found.append(
            f"whether the logs are of one job, as is taken for granted: the timeouts of {last.file} (line "
            f"{last.line}) and {first.file} (line {first.line}) are {days} days apart, too far for one hang. "
            "Give the logs of one run of one job"
        )
    if case.group is not None and not case.group.one:
        found.append(
            "which ranks are in one group: this torch does not say, or its status lines are missing, so "
            "nothing is compared. Torch 2.5 and later name the group"
        )
    if case.group is not None and len(case.readings) > 1:
        best, second = case.readings[:2]
        if second.score >= best.score - 1:
            found.append(
                f"whose group it was: {len(case.readings)} readings fit. The vLLM version and the parallel "
                "sizes settle it (the launch script, or the engine's first lines)"
            )
    if case.not_seen and name != "offline-wave-race":
        found.append(
            f"what {members(case, case.not_seen)} did: the input has no line of it. Its log tells, or, "
            "next time, a stack by py-spy"
        )
    elif case.group is not None and case.group.one and case.size is None and not case.absent:
        found.append(
            "which other ranks the group has and what they did: give the logs of all ranks of the job"
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
            found.append(f"something speaks for {', '.join(maybe)}, but that is not enough")
        if (
            case.two_sides
            and case.group is not None
            and len(case.group.files) == 1 == len(case.picture.ranks)
        ):
            found.append("the other half of the job: give the logs of trainer and rollout together")
    return tuple(found)


SILENT = (
    "whether the job hangs in silence: while it lasts, look at each rank: py-spy dump --pid PID (as "
    "its user or as root), ray stack under Ray, nvidia-smi. A rank whose stack is not in a collective is the "
    "one that the others wait for",
    "what each rank issues: next time, start with TORCH_FR_BUFFER_SIZE=2000 (older torch: "
    "TORCH_NCCL_TRACE_BUFFER_SIZE), TORCH_NCCL_DUMP_ON_TIMEOUT=1 and a timeout shorter than your "
    "patience; then lockstep dumps DIR",
)
"""What to do where the input tells of no failure and the job hangs all the same."""


def context(case: Case) -> tuple[Evidence, ...]:
    """Return what the job was doing before somebody's patience ended, as far as the input tells."""
    picture = case.picture
    before = case.earlier([*picture.of("saving", "saved", "preparing", "storage", "over", "progress")])
    last: dict[str, Mark] = {}
    for mark in sorted(before, key=lambda mark: (mark.file, mark.line)):
        last["preparing" if mark.kind == "preparing" else mark.kind] = mark
    found: list[Evidence] = []
    for mark in sorted(last.values(), key=lambda mark: (mark.file, mark.line)):
        if mark.kind == "over":
            text = "training was over: what came after is the end of the job, possibly groups being torn down"
        elif mark.kind == "progress" and mark.detail != "Train" and mark.total and mark.number == mark.total:
            continue
        elif mark.kind in ("preparing", "progress"):
            share = f" ({100 * (mark.number or 0) // mark.total}%)" if mark.total else ""
            text = f"{mark.detail or 'a progress bar'}: {mark.number} of {mark.total}{share}"
        elif mark.kind == "saving":
            done = last.get("saved")
            ended = done is not None and (done.file, done.line) > (mark.file, mark.line)
            end = "it ended" if ended else "no line says that it ended, so it possibly went on"
            text = f"{mark.detail}: {end}"
        elif mark.kind == "storage":
            text = f"trouble with storage: {mark.detail}"
        else:
            continue
        found.append(Evidence.of(text, mark))
    return tuple(found[-4:])
