"""`lockstep run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def run(
    device: Annotated[str, typer.Option(help="cpu: on any machine; cuda: on 3 or more GPUs.")] = "cpu",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each run.")] = 8,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where ledgers, logs and summary.json go.",
            show_default=".lockstep/cpu_stress or gpu_stress",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this arm (may be given several times).")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="How many GPUs (6) or which (0,1,4,5).", show_default="all")
    ] = None,
    rollout_gpus: Annotated[
        str | None,
        typer.Option(help="How many of them, or which, for the rollout.", show_default="the last two"),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A real checkpoint for the GPUs, instead of the tiny one.")
    ] = None,
    stress_minutes: Annotated[
        float, typer.Option(min=0, help="Soak for so long after the runs, see `lockstep soak`.")
    ] = 0.0,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print both command lines and start nothing.")
    ] = False,
) -> None:
    """Run the pinned job as it is, with the fault, and with fault and cure; say whether each ended as it
    must.

    Exit codes: 0 all ended as they must, 1 one did not, 2 wrong usage, wrong packages, too few GPUs,
    unreadable input or a full disk, 130 and 143 interrupted by Ctrl-C or SIGTERM.
    """
    from lockstep.experiments.stress import session
    from lockstep.stacks.base import Choice

    options = Choice(gpus=gpus, rollout_gpus=rollout_gpus, model=model)
    out = out or Path(".lockstep", "cpu_stress" if device == "cpu" else "gpu_stress")
    try:
        if stress_minutes:
            from lockstep.experiments.soak import command

            chosen = command.Options(minutes=stress_minutes)
            command.check(chosen)
        if dry:
            session.dry_run(device, steps=steps, out=out, only=only or [], options=options)
            raise typer.Exit()
        results = session.run(device, steps=steps, out=out, only=only or [], options=options)
        wrong = any(result.wrong for result in results)
        if stress_minutes:
            tallies = command.run(device, out=out.parent / "soak", options=chosen, page=None, gpu=options)
            wrong = wrong or any(map(command.is_wrong, tallies))
    except session.SetupError as error:
        fail(str(error))
    raise typer.Exit(1 if wrong else 0)
