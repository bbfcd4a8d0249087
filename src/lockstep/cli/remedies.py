"""`lockstep remedies`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def remedies(
    device: Annotated[str, typer.Option(help="cpu: on any machine.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where ledgers, logs and summary.json go.")] = Path(
        ".lockstep/remedies"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Run only this remedy (may be given again).")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
) -> None:
    """Run the job with a late rank under every remedy that people try, and say what became of it.

    Exit codes: 0 all ended as expected, 1 one did not, 2 wrong usage, wrong packages or unreadable input.
    """
    from lockstep.experiments.remedies import command as remedies_command
    from lockstep.experiments.stress.session import SetupError

    try:
        rows = remedies_command.run(device, out=out, only=only or [], page=page)
    except SetupError as error:
        fail(str(error))
    raise typer.Exit(0 if all(row["as_expected"] for row in rows) else 1)
