"""`lockstep gpu-check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def gpu_check(
    out: Annotated[Path | None, typer.Option("--json", help="Write what was found to this file.")] = None,
) -> None:
    """Check in a minute whether the job and the probe can work on this machine's GPUs (one is enough).

    Exit codes: 0 all is well that its GPUs allow, 1 a check failed or there is no GPU, 2 wrong usage.
    """
    from lockstep.gpu_check import command

    try:
        code = command.run(out)
    except OSError as error:
        fail(str(error))
    raise typer.Exit(code)
