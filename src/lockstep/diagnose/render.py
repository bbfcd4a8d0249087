"""A diagnosis as text for people, and as plain data for programs."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import msgspec

from lockstep.diagnose.model import Cause, Diagnosis, Evidence, GroupLine
from lockstep.diagnose.numeric_checks import ranges
from lockstep.remedies.model import NOT_MEASURED
from lockstep.report.console import Console
from lockstep.report.safe_text import markup as escape

_RANKS_SHOWN = 16
_READINGS_SHOWN = 3


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers, with the field names of `Diagnosis`; see docs/diagnose.md."""
    data: dict[str, Any] = msgspec.to_builtins(diagnosis)
    return data


def print_diagnosis(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Writes it to the console: the conclusion first, then evidence, remedies, and what is open."""
    out = console or Console(soft_wrap=True, markup=True)
    colour = "yellow" if diagnosis.cause in (None, "unknown") else "red"
    title = diagnosis.cause or "nothing found"
    out.print(f"[bold {colour}]{title}[/]  {escape(diagnosis.conclusion)}")
    if diagnosis.cause is None:
        _list(out, "launch scripts", diagnosis.launch)
        _open(out, diagnosis)
        _inputs(out, diagnosis)
        return
    if diagnosis.group:
        _group(out, diagnosis.group)
    for cause in diagnosis.causes:
        _cause(out, cause)
    _list(out, "arithmetic", diagnosis.arithmetic)
    if diagnosis.first:
        _list(out, "first failure", [diagnosis.first])
    _list(out, "what the job was doing", diagnosis.context)
    _list(out, "what followed", diagnosis.follows)
    if diagnosis.remedies:
        out.print("\n[bold]what to do[/], in this order")
        for n, remedy in enumerate(diagnosis.remedies, 1):
            measured = "" if remedy.measured == NOT_MEASURED else f". {remedy.measured}"
            out.print(f"  {n}. {escape(remedy.name)}: {escape(remedy.advice)}")
            out.print(f"     gives up: {escape(remedy.gives_up + measured)}")
    _list(out, "launch scripts", diagnosis.launch)
    _open(out, diagnosis)
    for other in diagnosis.others:
        name = other.name or other.label or "a group"
        out.print(f"\nalso timed out: {escape(name)}, {other.operation} {other.seq or ''}")
    _inputs(out, diagnosis)


def render(diagnosis: Diagnosis, width: int = 110) -> str:
    """The same as a string, without colour."""
    out = io.StringIO()
    print_diagnosis(diagnosis, Console(file=out, width=width, soft_wrap=True, markup=True))
    return out.getvalue()


def _open(out: Console, diagnosis: Diagnosis) -> None:
    if diagnosis.open:
        out.print("\n[bold]what is open[/]")
        for question in diagnosis.open:
            out.print(f"  - {escape(question)}")


def _group(out: Console, group: GroupLine) -> None:
    out.print("\n[bold]the group[/]")
    places = {rank.rank: rank.world_rank for rank in group.ranks if rank.file is not None}

    def named(found: Iterable[int]) -> str:
        return ranges(rank if (world := places.get(rank)) is None else world for rank in found)

    absent = named(group.absent) or "none proven"
    unseen = f"   not seen: {ranges(group.not_seen)}" if group.not_seen else ""
    if unseen and any(world not in (None, rank) for rank, world in places.items()):
        unseen += " of the group's places"
    size = "not known" if group.size is None else str(group.size)
    out.print(
        f"  side: {group.side}   size: {size}   waiting: {named(group.waiting)}   absent: {absent}{unseen}"
    )
    if not group.one:
        out.print("  these ranks may be of several groups: nothing is compared")
    for reading in group.readings[:_READINGS_SHOWN]:
        releases = f" {' or '.join(reading.releases)}" if reading.releases else ""
        ranks = f", ranks {ranges(reading.ranks)}" if reading.ranks else ""
        out.print(
            f"  {escape(reading.group)} of {escape(reading.component + releases)}{ranks} [{reading.score}]"
        )
        for why in reading.why:
            out.print(f"    + {escape(why)}")
        for but in reading.but:
            out.print(f"    - {escape(but)}")
    if len(group.readings) > _READINGS_SHOWN:
        out.print(f"  and {len(group.readings) - _READINGS_SHOWN} readings more")
    if not group.readings and group.label:
        out.print("  no known release makes a group with these numbers")
    for rank in group.ranks[:_RANKS_SHOWN]:
        place = f"{rank.file}:{rank.line}" if rank.file else "no line"
        size = "" if rank.elements is None else f" of {rank.elements} elements"
        number = "" if rank.seq is None else f" {rank.seq}"
        what = f" in {rank.operation}{number}{size}" if rank.operation else ""
        if rank.operation is None and rank.seq is not None:
            what = f" in number {rank.seq}, by its own status line"
        last = (
            f", last enqueued {rank.enqueued}, completed {rank.completed}"
            if rank.enqueued is not None
            else ""
        )
        job = "" if rank.world_rank in (None, rank.rank) else f" (place {rank.rank})"
        name = rank.rank if rank.world_rank is None else rank.world_rank
        if rank.file is None:
            name, job = rank.rank, ""
        out.print(f"  rank {name}{job}: {rank.state}{escape(what)}{last}  ({escape(place)})")
    if len(group.ranks) > _RANKS_SHOWN:
        out.print(f"  and {len(group.ranks) - _RANKS_SHOWN} ranks more")


def _cause(out: Console, cause: Cause) -> None:
    out.print(f"\n[bold]{cause.id}[/]: {cause.standing}")
    for sign, pieces in (("+", cause.evidence_for), ("-", cause.evidence_against)):
        for piece in pieces:
            _evidence(out, sign, piece)


def _list(out: Console, title: str, pieces: Iterable[Evidence]) -> None:
    if pieces := list(pieces):
        out.print(f"\n[bold]{title}[/]")
        for piece in pieces:
            _evidence(out, " ", piece)


def _evidence(out: Console, sign: str, piece: Evidence) -> None:
    out.print(f"  {sign} {escape(piece.text)}")
    if piece.file is not None:
        out.print(f"      [dim]{escape(f'{piece.file}:{piece.line}')}[/]  {escape(piece.quote)}")


def _inputs(out: Console, diagnosis: Diagnosis) -> None:
    for source in diagnosis.inputs:
        for problem in source.problems:
            out.print(f"problem: {escape(source.path)}: {escape(problem)}")
        if source.what != "a log":
            out.print(f"{escape(source.path)}: {escape(source.what)}")
    if diagnosis.cause is None:
        read = ", ".join(f"{source.path} ({source.lines} lines)" for source in diagnosis.inputs[:8])
        out.print(f"read: {escape(read)}")
