"""The command line. A command is one file: it reads its arguments, calls one room, prints, and sets the exit
code. The rooms are imported when a command runs, so that each command loads only what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from lockstep.cli import (
    audit,
    bisect,
    diagnose,
    dumps,
    faults,
    gpu_check,
    probe_release,
    remedies,
    remedy,
    run,
    soak,
    verify,
)
from lockstep.cli.application import app
from lockstep.exits import FORESEEN, INTERRUPTED, STOP_GIT, UNFORESEEN
from lockstep.guard import guarded
from lockstep.report.safe_text import one_line

__all__ = ["app", "main", "run_command"]

COMMANDS = (
    diagnose.diagnose,
    dumps.dumps,
    audit.audit,
    verify.verify,
    remedy.remedy,
    run.run,
    soak.soak,
    faults.faults,
    remedies.remedies,
    gpu_check.gpu_check,
    bisect.bisect,
    probe_release.probe_release,
)
"""In the order of the help: those that need nothing of a stack come first."""
for command in COMMANDS:
    app.command(command.__name__.replace("_", "-"))(command)

FOR_GIT = "probe-release"
"""The command that git runs."""


def run_command(arguments: Sequence[str], usage: int = FORESEEN) -> int:
    """Runs the command line and returns its exit code, `usage` where it is wrong. What goes wrong otherwise
    is raised."""
    # Colours would be spelled out by the safe streams.
    os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"
    try:
        return app(list(arguments), prog_name="lockstep", standalone_mode=False) or 0
    except typer.Abort as stop:
        if isinstance(stop.__cause__, EOFError):  # of a file: typer takes it for the end of standard input
            raise stop.__cause__ from None
        return INTERRUPTED
    except Exception as error:
        say = getattr(error, "format_message", None)
        if say is None:  # none of typer's own
            raise
        context = getattr(error, "ctx", None)
        if message := say():
            where = context.command_path if context else "lockstep"
            print(f"lockstep: {one_line(message).rstrip('.')}. See `{where} --help`", file=sys.stderr)
        return usage


def main() -> None:
    """Entry point of the `lockstep` command."""
    arguments = sys.argv[1:]
    if arguments[:1] == [FOR_GIT]:
        guarded(lambda: run_command(arguments, STOP_GIT), foreseen=STOP_GIT, unforeseen=STOP_GIT)
    guarded(lambda: run_command(arguments), unforeseen=UNFORESEEN)
