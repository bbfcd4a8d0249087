"""`lockstep remedies`: runs the job under each remedy, shows what became of it, writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.experiments.remedies.page import write_page
from lockstep.experiments.remedies.runs import FIELDS, run_remedies
from lockstep.experiments.stress.session import SetupError, find_stack, prepare, tell_left
from lockstep.report.console import Console
from lockstep.report.progress import ProgressLine
from lockstep.run.process_tree import StartError, terminate_as_exit
from lockstep.run.run_lock import HomeInUse, home
from lockstep.run.summary_file import Row, RowsError, read_rows
from lockstep.stacks import DEFAULT


def run(device: str, *, out: Path, only: Sequence[str], page: Path | None, stack: str = DEFAULT) -> list[Row]:
    """Runs the remedies named in `only` (all if none); returns all rows known in `out`, earlier runs' too.

    Raises SetupError when they cannot be run here.
    """
    console = Console()
    out = out.resolve()
    trial = find_stack(stack).trial
    if trial is None:
        raise SetupError(f"no remedies are tried on the stack {stack!r}")
    known = [remedy.name for remedy in trial.remedies]
    if unknown := set(only) - set(known):
        raise SetupError(f"no remedy is named {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    if device != "cpu":
        raise SetupError(f"the remedies are run on a CPU only, not on {device!r}")
    try:
        read_rows(out / "summary.json", FIELDS)  # what is not ours is refused before anything is made
    except (RowsError, OSError) as error:
        raise SetupError(str(error)) from error
    job = prepare(device, steps=1, out=out, stack=stack)
    lines: list[ProgressLine] = []

    def progress(name: str) -> ProgressLine:
        lines.append(ProgressLine(name))
        return lines[-1]

    def done(row: Row) -> None:
        if lines:
            lines[-1].close()
        right = "as expected" if row["as_expected"] else f"NOT as expected: {row['why']}"
        text = f"{row['remedy']}: {row['outcome']}, {right}. {row.get('sentence', '')}"
        console.print(text)

    chosen = [remedy for remedy in trial.remedies if not only or remedy.name in only]
    try:
        with home(out) as left, terminate_as_exit():
            tell_left(console, left)
            rows = run_remedies(job, trial, out, chosen, progress, done)
        if page is not None:
            write_page(trial.remedies, rows, page)
    except (StartError, HomeInUse, RowsError, OSError) as error:
        raise SetupError(str(error)) from error
    return rows
