"""`lockstep remedy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def remedy(
    name: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Which one; all are listed without.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the remedy's file here.")
    ] = None,
) -> None:
    """List the remedies for the rollout's hang, show one, or write the file that one consists of.

    Exit codes: 0 done, 2 wrong usage, no such remedy, or a file that is there already.
    """
    from lockstep.remedies.command import RemedyError, show

    try:
        show(name, to)
    except RemedyError as error:
        fail(str(error))
