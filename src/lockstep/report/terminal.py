"""A verdict as text for people."""

from __future__ import annotations

import io

from rich.table import Table
from rich.text import Text

from lockstep.causes import CAUSES
from lockstep.report.console import Console
from lockstep.report.safe_text import markup as escape
from lockstep.verdict import Kind, RankView, Verdict

_COLOURS = {
    Kind.IN_STEP: "green",
    Kind.DIVERGED: "red",
    Kind.STUCK: "red",
    Kind.STALLED: "yellow",
    Kind.INCOMPLETE: "yellow",
}
_PROBLEMS_SHOWN = 20
_RANKS_SHOWN = 32


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """Writes the verdict to the console, standard output unless told otherwise."""
    console = console or Console(markup=True)
    colour = _COLOURS[verdict.kind]
    console.print(f"[bold {colour}]{verdict.kind.value}[/]  {escape(verdict.sentence)}")
    if verdict.cause:
        print_cause(console, verdict)
    if verdict.ranks:
        console.print(_table(verdict))
    if verdict.group and verdict.agreed:
        console.print(
            f"  last boundary at which all ranks of the group agreed: {escape(str(verdict.agreed))}"
        )
    for text in verdict.consequences:
        console.print(f"  follows: {escape(text)}")
    if verdict.kind in (Kind.STUCK, Kind.STALLED) and verdict.still_s:
        console.print(f"  nothing has moved for {verdict.still_s:.1f} s")
    for role, counts in verdict.passed.items():
        if counts:
            told = ", ".join(f"{name} {n}" for name, n in counts.items())
            console.print(f"  passed by every {escape(role)}: {escape(told)}")
    for text in verdict.clocks:
        console.print(f"  clock: {escape(text)}")
    for problem in verdict.problems[:_PROBLEMS_SHOWN]:
        console.print(f"  problem: {escape(str(problem))}")
    if len(verdict.problems) > _PROBLEMS_SHOWN:
        console.print(f"  and {len(verdict.problems) - _PROBLEMS_SHOWN} problems more")


def print_cause(console: Console, verdict: Verdict) -> None:
    """Writes the cause, its sentence and what to do first."""
    cause = CAUSES.get(verdict.cause)
    sentence = f": {cause.sentence}" if cause else ""
    console.print(Text(f"  cause: {verdict.cause}{sentence}"))
    for text in verdict.evidence:
        console.print(Text(f"    {text}"))
    if cause and cause.remedies:
        first = cause.remedies[0]
        console.print(Text(f"  do first: {first.name}: {first.advice}"))


def render(verdict: Verdict, width: int = 110, color: bool = False) -> str:
    """The same as a string."""
    out = io.StringIO()
    system = "standard" if color else None
    print_verdict(
        verdict,
        Console(file=out, width=width, force_terminal=color, color_system=system, markup=True),
    )
    return out.getvalue()


def _table(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=True)
    for column in ("rank", "process", "issued", "state", "operation", "where"):
        table.add_column(column, overflow="fold")
    notable = sorted(verdict.ranks, key=lambda view: (view.state == "done", view.rank))[:_RANKS_SHOWN]
    for view in notable:
        pid = f", pid {view.pid}" if view.pid is not None else ""
        issued = "" if view.issued is None else str(view.issued)
        cells = (
            str(view.rank),
            f"{view.process}{pid}",
            issued,
            _state(view),
            view.operation or "",
            view.where or "",
        )
        table.add_row(*(escape(cell) for cell in cells))
    if len(verdict.ranks) > len(notable):
        table.add_row("...", f"{len(verdict.ranks) - len(notable)} more", "", "", "", "")
    return table


def _state(view: RankView) -> str:
    if view.ended:
        return f"{view.state}, ended"
    if view.silent_s is not None:
        return f"{view.state}, silent for {view.silent_s:.0f} s"
    return f"{view.state}, in {view.park}" if view.park else view.state
