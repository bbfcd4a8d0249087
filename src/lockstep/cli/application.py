"""The application that the commands belong to, and how a command says that it cannot go on."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from lockstep.exits import FORESEEN
from lockstep.report.safe_text import one_line

app = typer.Typer(
    help="Do all ranks of a reinforcement learning job issue the same collectives?",
    epilog="Exit code 70, in every command: an error of Lockstep's own, which is no verdict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def fail(message: str, code: int = FORESEEN) -> NoReturn:
    """Print the message and end the command with the code."""
    print(f"lockstep: {one_line(message)}", file=sys.stderr)
    raise typer.Exit(code)


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"lockstep {version('lockstep')}")
    except PackageNotFoundError:
        fail("it is not installed here: expected the metadata that pip writes")
    raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and end."),
    ] = False,
) -> None:
    """Options of no command in particular."""
