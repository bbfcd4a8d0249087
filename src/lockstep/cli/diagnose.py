"""`lockstep diagnose`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lockstep.cli.application import fail
from lockstep.exits import DIAGNOSES
from lockstep.report.safe_text import json_text


def diagnose(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Logs of one job; - for stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Say from its logs why a job hung: whose group, who waited for whom, the cause, what to do.

    Exit codes: 0 a cause was found, 1 a hang without a known cause, 2 wrong usage or unreadable input, 3
    nothing to diagnose.
    """
    from lockstep import diagnose as room

    if "-" in paths and sys.stdin is None:
        fail("standard input is closed: expected a log on it")
    try:
        found = room.diagnose(paths)
    except room.InputError as error:
        fail(str(error))
    from lockstep.diagnose import render

    if as_json:
        print(json_text(render.to_json(found)))
    else:
        render.print_diagnosis(found)
    raise typer.Exit(DIAGNOSES.get(found.cause, 0))
