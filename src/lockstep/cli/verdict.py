"""How `verify` and `dumps` end: in one verdict, shown and turned into an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from lockstep.exits import VERDICTS
from lockstep.report.safe_text import json_text

if TYPE_CHECKING:
    from lockstep.verdict import Verdict


def end_with(verdict: Verdict, *, as_json: bool) -> NoReturn:
    """Print the verdict and end the command with its code."""
    if as_json:
        from lockstep.report import to_json

        print(json_text(to_json(verdict)))
    else:
        from lockstep.report.terminal import print_verdict

        print_verdict(verdict)
    raise typer.Exit(VERDICTS[verdict.kind.value])
