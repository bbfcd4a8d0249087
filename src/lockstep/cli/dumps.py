"""`lockstep dumps`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail
from lockstep.cli.verdict import end_with


def dumps(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Flight recorder files, one a rank.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say whether a job was in step, from the flight recorder dumps of its ranks.

    Exit codes: 0 in step, 1 diverged or stuck, 2 wrong usage or unreadable input, 3 stalled, 4 incomplete.
    """
    from lockstep.dumps import DumpError, judge, read_directory

    try:
        verdict = judge(read_directory(directory))
    except DumpError as error:
        fail(str(error))
    end_with(verdict, as_json=as_json)
