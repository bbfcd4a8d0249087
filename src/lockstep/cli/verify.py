"""`lockstep verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail
from lockstep.cli.verdict import end_with


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A job's output, or its ledgers/ folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    settle: Annotated[float, typer.Option(min=0.1, help="Seconds without movement that make a hang.")] = 5.0,
) -> None:
    """Say whether a job stayed in step, from its ledgers alone.

    Exit codes: 0 in step, 1 diverged or stuck, 2 wrong usage or unreadable input, 3 stalled, 4 incomplete.
    """
    from lockstep.record import LedgerError, read_directory
    from lockstep.stacks.judging import judge

    try:
        verdict = judge(read_directory(directory), settle_s=settle)
    except LedgerError as error:
        fail(str(error))
    end_with(verdict, as_json=as_json)
