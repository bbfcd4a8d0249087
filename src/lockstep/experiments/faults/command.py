"""`lockstep faults`: runs the matrix, shows each verdict, writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.experiments.faults.matrix import judge_again, known_rows, run_matrix
from lockstep.experiments.faults.page import write_page
from lockstep.experiments.stress.session import SetupError, find_stack, prepare, tell_left
from lockstep.record import LedgerError
from lockstep.report.console import Console
from lockstep.report.progress import ProgressLine
from lockstep.run.process_tree import StartError, terminate_as_exit
from lockstep.run.run_lock import HomeInUse, home
from lockstep.run.summary_file import Row, RowsError
from lockstep.stacks import DEFAULT
from lockstep.stacks.base import Fault


def run(
    device: str, *, out: Path, only: Sequence[str], again: bool, page: Path | None, stack: str = DEFAULT
) -> list[Row]:
    """Runs the faults named in `only` (all if none); returns all rows known in `out`, earlier runs' too.

    With `again` nothing is run: the ledgers of earlier runs are judged again. Raises SetupError when it
    cannot be done here.
    """
    console = Console()
    out = out.resolve()
    faults = find_stack(stack).faults
    if unknown := set(only) - {fault.name for fault in faults}:
        known = ", ".join(fault.name for fault in faults)
        raise SetupError(f"no fault is named {', '.join(sorted(unknown))}; there are: {known}")
    chosen = [fault for fault in faults if not only or fault.name in only]
    lines: list[ProgressLine] = []

    def progress(fault: Fault) -> ProgressLine:
        lines.append(ProgressLine(fault.name))
        return lines[-1]

    said: set[str] = set()

    def done(fault: Fault, row: Row) -> None:
        said.add(fault.name)
        for line in lines[-1:]:
            line.close()
        right = "as expected" if not row["wrong"] else f"NOT as expected: {row['wrong']}"
        text = f"{fault.name}: {row['verdict']}, {right}. {row.get('sentence', '')}"
        console.print(text)
        if row.get("cause"):
            console.print(f"  cause: {'; '.join((row['cause'], *row['evidence']))}")

    try:
        if again:
            rows = judge_again(out, chosen, done)
            for name in sorted({fault.name for fault in chosen} - said):
                console.print(f"{name}: not judged again, there are no ledgers of it")
        else:
            known_rows(out)  # what is not ours is refused before anything is made
            job = prepare(device, steps=1, out=out, stack=stack)
            with home(out) as left, terminate_as_exit():
                tell_left(console, left)
                rows = run_matrix(job, out, chosen, progress, done)
        if page is not None:
            write_page(faults, rows, page)
    except (StartError, HomeInUse, LedgerError, RowsError, OSError) as error:
        raise SetupError(str(error)) from error
    return rows
