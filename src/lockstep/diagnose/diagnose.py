"""Logs -> Diagnosis. The one way through: read, put together, name the group, weigh the causes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict

from lockstep.diagnose import numeric_checks as arithmetic
from lockstep.diagnose import sentences as words
from lockstep.diagnose.causes import Case, weigh
from lockstep.diagnose.events import Event, Mark
from lockstep.diagnose.groups import Layout, Reading, readings
from lockstep.diagnose.groups.match import Seen
from lockstep.diagnose.input_files import find, opened
from lockstep.diagnose.model import (
    Cause,
    CauseId,
    Diagnosis,
    Evidence,
    GroupLine,
    Input,
    RankLine,
    ReadingLine,
)
from lockstep.diagnose.scan import Scan, scan
from lockstep.diagnose.timeline import Group, Picture, picture
from lockstep.remedies.catalogue import REMEDIES

_SIZES = re.compile(r"(tensor|pipeline|data)_parallel_size=(\d{1,4})")


def diagnose(paths: Sequence[str]) -> Diagnosis:
    """Reads the logs of one job: files, directories, `-` for standard input. Raises InputError if one cannot
    be read.
    """
    scans: list[Scan] = []
    for path in find(paths):
        with opened(path) as stream:
            scans.append(scan(stream, "standard input" if path == "-" else path))
    inputs = [Input(s.file, s.bytes, s.lines, tuple(s.problems)) for s in scans]
    return conclude([event for s in scans for event in s.events], inputs)


def conclude(events: Sequence[Event], inputs: Sequence[Input]) -> Diagnosis:
    """The diagnosis of these events: a pure function."""
    seen = picture(events)
    cases = [_case(seen, group) for group in seen.groups]
    cases.sort(key=_primary(seen))
    case = cases[0] if cases else Case(seen, None, (), None, ())
    causes = weigh(case)
    best = next((cause for cause in causes if cause.standing == "found"), None)
    name: CauseId | None = best.id if best else "unknown" if _failed(seen) else None
    group = _group_line(case) if case.group else None
    side = group.side if group else _side_of_failure(best)
    return Diagnosis(
        conclusion=words.conclusion(name, case, best),
        cause=name,
        side=side if name else None,
        group=group,
        causes=causes,
        first=Evidence.of(words.event(seen.first), seen.first) if seen.first else None,
        follows=_follows(case, cases[1:], best) if name else (),
        arithmetic=_arithmetic(case),
        remedies=REMEDIES[name] if name else (),
        open=words.open_questions(name, case, causes) if name else (),
        others=tuple(_group_line(other) for other in cases[1:]),
        inputs=tuple(inputs),
    )


def _failed(seen: Picture) -> bool:
    return bool(seen.groups) or any(mark.failure for mark in seen.marks)


def _primary(seen: Picture) -> Callable[[Case], tuple[int, int, str, int]]:
    """The rollout's groups first: the trainer waits for the rollout, never the other way round. Then the
    first in time.
    """
    first = seen.first_timeout

    def order(case: Case) -> tuple[int, int, str, int]:
        assert case.group is not None
        timeout = case.group.timeouts[0]
        rollout = case.reading is not None and case.reading.side == "rollout"
        return (not rollout, first not in case.group.timeouts, timeout.file, timeout.line)

    return order


def _case(seen: Picture, group: Group) -> Case:
    files = group.files
    ranks = {rank for file, found in seen.ranks.items() if file in files for rank in found}
    gathered = arithmetic.group_size(group)
    world = max(max(ranks, default=0) + 1, gathered[0] if gathered else 1)
    found = readings(
        Seen(
            label=group.label,
            operations=tuple((t.op, t.numel_in, t.seq) for t in group.at(group.seq)),
            members=tuple((rank, member.world_rank) for rank, member in group.members.items()),
            world=world,
            vllm=_version(seen),
            layout=_layout(seen),
        )
    )
    best = found[0] if found else None
    size = len(best.ranks) if best and best.ranks else gathered[0] if gathered else None
    if size is None and (group.label is None or best is None) and world > 1:
        size = max(world, *(rank + 1 for rank in group.members))
    absent = tuple(sorted(set(range(size)) - set(group.waiting))) if size else ()
    repeated = sum(timeout.repeated for timeout in group.timeouts)
    if repeated >= len(absent):
        absent = ()  # Ray left out equal lines of that many other ranks
    return Case(seen, group, found, size, absent)


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
    if case.group.seq <= 1:
        found.append(Evidence.of("number 1: the group's first collective", timeout))
    return tuple(found)


def _follows(case: Case, others: Sequence[Case], best: Cause | None) -> tuple[Evidence, ...]:
    """What is a consequence: the trainer's waiting for the rollout, and the ends that watchdogs put to
    processes.
    """
    found: list[Evidence] = []
    seen = case.picture
    if case.reading is not None and case.reading.side == "rollout":
        bars = [mark for mark in case.earlier(seen.of("progress")) if mark.detail]
        if bars:
            where = f"at step {bars[-1].number} of {bars[-1].total}"
            found.append(Evidence.of(f"the trainer only waited, {where}", bars[-1]))
        else:
            found.append(Evidence("the trainer only waited for the rollout's answer"))
    for other in others:
        assert other.group is not None
        found.append(Evidence.of(f"{words.group(other)} timed out as well", other.group.timeouts[0]))
    ended: list[Mark] = case.later(
        seen.of("child exit", "engine died", "engine fatal", "gloo closed", "nccl remote")
    )
    found += [Evidence.of("an end that followed the timeout", mark) for mark in ended[:3]]
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
    timeout = group.at(seq)[0]
    absent = set(case.absent)
    ranks = []
    for rank in sorted({*group.members, *(absent if len(absent) <= 64 else ())}):
        member = group.members.get(rank)
        first = member.first if member else None
        same = first is not None and (first.op, first.numel_in, first.seq) == (
            timeout.op,
            timeout.numel_in,
            seq,
        )
        where: Event | None = first or (member.status if member else None)
        if where is None:
            where = _heard(case, _world_rank(case, rank))
        ranks.append(
            RankLine(
                rank,
                member.world_rank if member else _world_rank(case, rank),
                "absent" if first is None else "waiting" if same else "differs",
                first.op if first else None,
                first.numel_in if first else None,
                first.seq if first else None,
                member.status.enqueued if member and member.status else None,
                member.status.completed if member and member.status else None,
                where.file if where else None,
                where.line if where else None,
            )
        )
    return GroupLine(
        label=str(label) if label else None,
        pg_id=label.local if label else None,
        pg_guid=label.guid if label else None,
        description=label.desc if label else None,
        side=case.reading.side if case.reading else "unknown",
        name=case.reading.group if case.reading else None,
        operation=timeout.op,
        elements=timeout.numel_in,
        seq=seq,
        timeout_ms=timeout.timeout_ms,
        waiting=group.waiting,
        absent=case.absent,
        ranks=tuple(ranks),
        readings=tuple(_reading_line(reading) for reading in case.readings),
    )


def _world_rank(case: Case, rank: int) -> int | None:
    ranks = case.reading.ranks if case.reading else None
    return ranks[rank] if ranks and rank < len(ranks) else None


def _heard(case: Case, world_rank: int | None) -> Event | None:
    """The first line of a rank that did not wait."""
    assert case.group is not None
    events: list[Event] = [*case.picture.marks, *case.picture.statuses]
    mine = [
        e
        for e in events
        if e.file in case.group.files and e.origin.rank is not None and e.origin.rank == world_rank
    ]
    return min(mine, key=lambda e: e.line, default=None)


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
