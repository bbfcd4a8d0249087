"""Logs -> Diagnosis. The one way through: read, put together, name the group, weigh the causes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict

from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose import sentences as words
from lockstep.diagnose.advice import advice
from lockstep.diagnose.causes import Case, weigh
from lockstep.diagnose.companions import companions
from lockstep.diagnose.events import NO_NUMBER, Event, Mark
from lockstep.diagnose.groups import Layout, Reading, readings
from lockstep.diagnose.groups.match import Seen
from lockstep.diagnose.groups_seen import Group, Member
from lockstep.diagnose.input_files import STDIN, InputError, find, opened
from lockstep.diagnose.model import (
    Cause,
    CauseId,
    Diagnosis,
    Evidence,
    GroupLine,
    Input,
    RankLine,
    RankState,
    ReadingLine,
)
from lockstep.diagnose.scan import Scan, scan
from lockstep.diagnose.timeline import Picture, picture

_SIZES = re.compile(r"(tensor|pipeline|data)_parallel_size=(\d{1,4})")
_GROUPS_READ = 32  # groups whose numbers are looked up among the releases; the others are counted
_HALVES = 2  # a job's sides, each of which has a rank 0
_DAY = 86_400.0
_ONE_RUN = 2 * _DAY  # between the end of one log and the beginning of another: more than time zones come to
_LISTED = 64  # ranks that are not seen, each with a line of its own


def diagnose(paths: Sequence[str]) -> Diagnosis:
    """Read what a job left: logs, folders, `-` for standard input; launch scripts and lists of packages too.

    Raises InputError if one cannot be read, or if one of a folder cannot be read, or is damaged, and
    what is left tells of no failure.
    """
    found = find(paths)
    scans: list[Scan] = []
    damaged: list[str] = []
    for path in found.files:
        name = "standard input" if path == STDIN else path
        with opened(path) as stream:
            result = scan(stream, name)
        if stream.damage:
            damaged.append(f"{name}: damaged after {result.bytes} bytes: {stream.damage}")
            result.problems.insert(0, f"damaged after {result.bytes} bytes, which were read: {stream.damage}")
        if not result.bytes and not stream.damage:
            result.problems.append("it is empty")
        scans.append(result)
    beside = companions(scans)
    inputs = [
        Input(s.file, s.bytes, s.lines, tuple(s.problems), beside.notes.get(s.file, "a log")) for s in scans
    ]
    inputs += [Input(path, 0, 0, (f"cannot be read: {why}",)) for path, why in found.unreadable.items()]
    events: list[Event] = [event for s in scans if s.file not in beside.notes for event in s.events]
    diagnosis = conclude([*events, *beside.marks], inputs, launch=beside.findings, questions=_several(scans))
    damaged += [f"{path}: cannot be read: {why}" for path, why in found.unreadable.items()]
    if diagnosis.cause is None and damaged:
        raise InputError(f"{damaged[0]}; what could be read tells of no failure")
    return diagnosis


def _several(scans: Sequence[Scan]) -> tuple[str, ...]:
    """Return a question if two logs do not overlap in time, so that they are hardly of one run."""
    timed = [(s.begin, s.end, s.file) for s in scans if s.begin is not None and s.end is not None]
    if len(timed) < 2:
        return ()
    first = min(timed, key=lambda log: log[1])
    last = max(timed, key=lambda log: log[0])
    gap = last[0] - first[1]
    if not _ONE_RUN < gap < 300 * _DAY:
        return ()
    return (
        f"whether the logs are of one job: {first[2]} ends {gap / _DAY:.0f} days before {last[2]} begins. If "
        "these are several jobs or runs, give the logs of one",
    )


def conclude(
    events: Sequence[Event],
    inputs: Sequence[Input],
    *,
    launch: tuple[Evidence, ...] = (),
    questions: tuple[str, ...] = (),
) -> Diagnosis:
    """Return the diagnosis of these events: a pure function."""
    seen = picture(events)
    cases = [_case(seen, group, look_up=n < _GROUPS_READ) for n, group in enumerate(_in_time(seen))]
    cases.sort(key=_primary(seen))
    case = cases[0] if cases else Case(seen, None, (), None, ())
    causes = weigh(case)
    best = next((cause for cause in causes if cause.standing == "found"), None)
    name: CauseId | None = best.id if best else "unknown" if _failed(seen) else None
    group = _group_line(case) if case.group else None
    side = group.side if group else _side_of_failure(best)
    empty = name is None and inputs and all(not source.bytes for source in inputs)
    conclusion = words.conclusion(name, case, best)
    if empty:
        conclusion = f"nothing to diagnose: {', '.join(source.path for source in inputs[:4])} is empty"
    asked = (
        *(() if seen.apart else questions),
        *(words.open_questions(name, case, causes) if name else words.SILENT),
    )
    if len([c for c in cases if c.group and c.group.is_default]) > _HALVES:
        asked = (
            "whether the logs are of one job: more than two groups of all ranks timed out, and a job has two "
            "sides at most. Give the logs of one run of one job",
            *asked,
        )
    if name and any("of one job" in question for question in asked):
        conclusion += ". The logs may be of several jobs: see what is open"
    return Diagnosis(
        conclusion=conclusion,
        cause=name,
        side=side if name else None,
        group=group,
        causes=causes,
        first=Evidence.of(words.sentence(seen.first), seen.first) if seen.first else None,
        follows=_follows(case, cases[1:], best) if name else (),
        arithmetic=_arithmetic(case),
        remedies=advice(name, case) if name else (),
        open=asked,
        others=tuple(_group_line(other) for other in cases[1:_GROUPS_READ]),
        inputs=tuple(inputs),
        context=words.context(case) if name else (),
        launch=launch,
    )


def _failed(seen: Picture) -> bool:
    return bool(seen.groups) or any(mark.failure for mark in seen.marks)


def _in_time(seen: Picture) -> list[Group]:
    return sorted(seen.groups, key=lambda group: (group.timeouts[0].file, group.timeouts[0].line))


def _primary(seen: Picture) -> Callable[[Case], tuple[int, int, str, int]]:
    """Order cases: the rollout's groups first, as the trainer waits for the rollout, never the other way
    round. Then the first in time.
    """
    first = seen.first_timeout

    def order(case: Case) -> tuple[int, int, str, int]:
        assert case.group is not None
        timeout = case.group.timeouts[0]
        rollout = case.reading is not None and case.reading.side == "rollout"
        return (not rollout, timeout is not first, timeout.file, timeout.line)

    return order


def _case(seen: Picture, group: Group, *, look_up: bool) -> Case:
    gathered = arithmetic.group_size(group)
    files = group.files
    ranks = {rank for file in files for rank in seen.ranks.get(file, ())}
    layout = _layout(seen)
    found: tuple[Reading, ...] = ()
    if look_up:
        world = max(max(ranks, default=0) + 1, gathered[0] if gathered else 1)
        members = tuple((rank, member.world_rank) for rank, member in sorted(group.members.items()))
        found = readings(
            Seen(
                label=group.label,
                operations=tuple(dict.fromkeys((t.op, t.numel_in, t.seq) for t in group.works)),
                members=members if group.one else (),
                world=world,
                vllm=_version(seen),
                layout=layout,
            )
        )
        if seen.of("trainer") and not seen.of("vllm", "server", "coordinator", "engine config", "version"):
            found = tuple(reading for reading in found if reading.side != "rollout")
    case = Case(seen, group, found, None, ())
    size = _size(case, gathered[0] if gathered else None, layout)
    absent = _absent(case, size) if group.one else set()
    known = {*group.members, *absent}
    not_seen = tuple(rank for rank in range(size or 0) if rank not in known)
    if group.repeated >= len(not_seen):
        not_seen = ()  # Ray left out equal lines of that many other ranks
    return Case(seen, group, found, size, tuple(sorted(absent)), not_seen)


def _size(case: Case, gathered: int | None, layout: Layout | None) -> int | None:
    """Return how many ranks a group has, if a line or a reading that holds says it."""
    group = case.group
    assert group is not None
    if not group.one:
        return None
    size = gathered
    told = {mark.number for mark in case.picture.of("world size")}
    if size is None and case.reading and case.reading.ranks and case.reading.side == "rollout":
        size = len(case.reading.ranks) if case.step_sync or layout else None
    elif size is None and group.is_default and len(told) == 1:
        size = told.pop()
    return size if size is not None and all(rank < size for rank in group.members) else None


def _absent(case: Case, size: int | None) -> set[int]:
    """Return the ranks that a line proves not to have come: by their own status, or because they heard of
    the timeout and waited in nothing.
    """
    group, seen = case.group, case.picture
    assert group is not None
    absent = {rank for rank, member in group.members.items() if member.absent_from(group.seq)}
    if not group.is_default and size is None:
        return absent
    place: Callable[[int], int | None] = lambda world: world  # noqa: E731
    ranks = case.reading.ranks if case.reading and case.reading.side == "rollout" else None
    if ranks is not None:
        place = {world: rank for rank, world in enumerate(ranks)}.get
    elif any(member.world_rank not in (None, rank) for rank, member in group.members.items()):
        return absent
    for mark in seen.of("dump signal"):
        world = mark.origin.rank
        if world is None or mark.file not in group.files or "this local rank" in mark.detail:
            continue
        rank = place(world)
        if rank is None or (size is not None and rank >= size) or (mark.file, world) in seen.waiting_ranks:
            continue
        if rank not in group.members or not group.members[rank].waits:
            absent.add(rank)
    return absent


def _version(seen: Picture) -> str | None:
    return next((mark.detail for mark in reversed(seen.of("version"))), None)


def _layout(seen: Picture) -> Layout | None:
    """The sizes that the engine printed when it started. Under the synchronous engine of a rollout, DP is
    left out.
    """
    for mark in seen.of("engine config"):
        sizes = {name: int(size) for name, size in _SIZES.findall(mark.detail)}
        layout = Layout(sizes.get("tensor", 1), sizes.get("pipeline", 1), sizes.get("data", 1))
        if 1 < layout.world <= 4096:
            return layout
    return None


def _arithmetic(case: Case) -> tuple[Evidence, ...]:
    if case.group is None:
        return ()
    found: list[Evidence] = []
    timeout = case.group.timeouts[0]
    if case.step_sync and case.reading and case.reading.ranks:
        ranks = len(case.reading.ranks)
        text = f"{timeout.numel_in} elements for {ranks} ranks: the step's all-reduce has as many per rank"
        found.append(Evidence.of(text, timeout))
    if position := arithmetic.wave_position(case):
        found.append(position[1])
    if size := arithmetic.group_size(case.group):
        found.append(size[1])
    found += arithmetic.differing_sizes(case.group)
    found += arithmetic.standing_watchdog(case.group)
    if 0 <= case.group.seq <= 1:
        found.append(Evidence.of("number 1: the group's first collective", timeout))
    return tuple(found)


def _follows(case: Case, others: Sequence[Case], best: Cause | None) -> tuple[Evidence, ...]:
    """What is a consequence: the trainer's waiting for the rollout, and the ends that watchdogs put to
    processes.
    """
    found: list[Evidence] = []
    seen = case.picture
    if case.reading is not None and case.reading.side == "rollout" and case.two_sides:
        bars = [mark for mark in case.earlier(seen.of("progress")) if mark.detail]
        if bars:
            where = f"at step {bars[-1].number} of {bars[-1].total}"
            found.append(Evidence.of(f"the trainer only waited, {where}", bars[-1]))
        else:
            found.append(Evidence("the trainer only waited for the rollout's answer"))
    for other in others[:3]:
        assert other.group is not None
        found.append(Evidence.of(f"{words.group(other)} timed out as well", other.group.timeouts[0]))
    ended: list[Mark] = case.later(seen.role("end", "effect"))
    found += [Evidence.of(f"after the timeout: {words.sentence(mark)}", mark) for mark in ended[:3]]
    return tuple(found)


def _side_of_failure(best: Cause | None) -> str | None:
    engine = best is not None and any(
        "ngine" in e.quote or "vllm" in e.quote.lower() for e in best.evidence_for
    )
    return ("rollout" if engine else "unknown") if best else None


def _group_line(case: Case) -> GroupLine:
    group = case.group
    assert group is not None
    label, seq = group.label, group.seq
    timeout = group.works[0]
    ranks = [
        _rank_line(case, rank) for rank in sorted({*group.members, *case.absent, *case.not_seen[:_LISTED]})
    ]
    return GroupLine(
        label=str(label) if label else None,
        pg_id=label.local if label else None,
        pg_guid=label.guid if label else None,
        description=label.desc if label else None,
        side=case.reading.side if case.reading else "unknown",
        name=case.reading.group if case.reading else None,
        operation=timeout.op,
        elements=timeout.numel_in,
        seq=None if seq == NO_NUMBER else seq,
        timeout_ms=timeout.timeout_ms,
        waiting=group.waiting,
        absent=case.absent,
        ranks=tuple(ranks),
        readings=tuple(_reading_line(reading) for reading in case.readings),
        size=case.size,
        one=group.one,
        not_seen=case.not_seen,
    )


def _rank_line(case: Case, rank: int) -> RankLine:
    group = case.group
    assert group is not None
    member = group.members.get(rank, Member(rank))
    world = member.world_rank if rank in group.members else _world_rank(case, rank)
    first, status, timeout = member.first, member.status, group.works[0]
    same = first is None or not group.one or (first.op, first.numel_in) == (timeout.op, timeout.numel_in)
    state: RankState = "not seen"
    if rank in case.absent:
        state = "absent"
    elif member.waits:
        state = "waiting" if same and (member.waits_in == group.seq or not group.one) else "differs"
    elif status is not None:
        state = "differs"
    where: Event | None = first or status or case.picture.first_line(world, group.files)
    return RankLine(
        rank,
        world,
        state,
        first.op if first else None,
        first.numel_in if first else None,
        None if member.waits_in == NO_NUMBER else member.waits_in,
        status.enqueued if status else None,
        status.completed if status else None,
        where.file if where else None,
        where.line if where else None,
    )


def _world_rank(case: Case, rank: int) -> int | None:
    ranks = case.reading.ranks if case.reading else None
    return ranks[rank] if ranks and rank < len(ranks) else None


def _reading_line(reading: Reading) -> ReadingLine:
    return ReadingLine(
        reading.side,
        reading.component,
        reading.releases,
        reading.group,
        reading.meaning,
        reading.ranks,
        asdict(reading.layout) if reading.layout else None,
        reading.score,
        reading.why,
        reading.but,
    )
