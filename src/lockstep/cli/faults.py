"""`lockstep faults`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def faults(
    device: Annotated[str, typer.Option(help="cpu: on any machine.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where ledgers, logs and summary.json go.")] = Path(
        ".lockstep/faults"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Run only this fault (may be given again).")] = None,
    again: Annotated[bool, typer.Option("--again", help="Judge the ledgers of earlier runs again.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the matrix to this Markdown file.")] = None,
) -> None:
    """Run the job with every way to fall out of step, and say whether each was reported right.

    Exit codes: 0 all were, 1 one was not, 2 wrong usage, wrong packages or unreadable input.
    """
    from lockstep.experiments.faults import command
    from lockstep.experiments.stress.session import SetupError

    try:
        rows = command.run(device, out=out, only=only or [], again=again, page=page)
    except SetupError as error:
        fail(str(error))
    raise typer.Exit(1 if any(row["wrong"] for row in rows) else 0)
