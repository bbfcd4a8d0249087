"""Runs and their verdicts for a terminal: one at a time as they end, and all in a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lockstep.experiments.stress.scenarios import Result
from lockstep.report.console import Console
from lockstep.report.terminal import print_cause
from lockstep.verdict import Kind

_QUIET = (Kind.INCOMPLETE, Kind.STALLED)
"""Verdicts that only say, of a job that has failed, that it has not gone on."""


def show_result(console: Console, result: Result) -> None:
    """The run's verdict in a sentence, and what was wrong if something was."""
    name = result.arm.spec.name
    failed = result.outcome is not None and result.outcome.failure
    if result.outcome is not None and not (failed and result.outcome.verdict.kind in _QUIET):
        verdict = result.outcome.verdict
        console.print(Text.assemble((name, "bold"), f": {verdict.kind.value}. {verdict.sentence}"))
        if verdict.cause:
            print_cause(console, verdict)
        for consequence in verdict.consequences:
            console.print(Text(f"  {consequence}"), style="dim")
    for remark in result.remarks:
        console.print(Text.assemble((name, "bold"), f": {remark}"))
    if result.wrong:
        words = (" did not end as it must", "red")
        console.print(Text.assemble((name, "bold"), words, f": {result.wrong}"))


def show_summary(console: Console, results: Sequence[Result], path: Path) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("run", "fault", "remedy", "verdict", "", "to verdict", "in all", "peak"):
        table.add_column(column)
    for result in results:
        spec, outcome = result.arm.spec, result.outcome
        table.add_row(
            spec.name,
            str(spec.fault["name"]) if spec.fault else "none",
            spec.remedy or "none",
            outcome.verdict.kind.value if outcome else "-",
            "as it must" if not result.wrong else "WRONG",
            f"{outcome.seconds_to_verdict:.1f} s" if outcome else "-",
            f"{outcome.seconds:.0f} s" if outcome else "-",
            f"{outcome.peak_memory / 2**30:.1f} GiB" if outcome else "-",
        )
    console.print()
    console.print(table)
    console.print(Text(f"details: {path}"), style="dim")
