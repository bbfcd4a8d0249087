"""`lockstep audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def audit(
    scripts: Annotated[list[Path], typer.Argument(metavar="SCRIPT…", help="Scripts that launch one job.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the audit as JSON.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Print the corrections as a unified diff.")] = False,
    remedy: Annotated[str | None, typer.Option(help="What --fix cures with: see docs/audit.md.")] = None,
    versions: Annotated[Path | None, typer.Option(help="Packages, as pip freeze prints them.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="The training step at which the job hung.")] = None,
) -> None:
    """Say what in a job's launch scripts can make it hang. Runs nothing of them.

    Exit codes: 0 no hazard, 1 a hazard was found, 2 wrong usage or unreadable input.
    """
    from lockstep.audit import AuditError, command

    try:
        code = command.audit(scripts, versions, step, as_json=as_json, fix=fix, remedy=remedy)
    except AuditError as error:
        fail(str(error))
    raise typer.Exit(code)
