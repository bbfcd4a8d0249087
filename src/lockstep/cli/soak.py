"""`lockstep soak`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.application import fail


def soak(
    stress_minutes: Annotated[float, typer.Option(help="For all remedies together, in minutes.")],
    device: Annotated[str, typer.Option(help="cpu: on any machine; cuda: on one GPU or more.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path(".lockstep/soak"),
    seed: Annotated[int | None, typer.Option(help="Of all rounds.", show_default="the record's")] = None,
    remedy: Annotated[
        list[str] | None,
        typer.Option(
            help="May be given several times.", show_default="as shipped, independent ranks, open wave"
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the record.", show_default="by remedy and conditions")] = "",
    requests: Annotated[str, typer.Option(help="Requests of each worker in a round.")] = "2-6",
    max_tokens: Annotated[str, typer.Option(help="Tokens of a round's answers.")] = "1-4",
    pictures: Annotated[float, typer.Option(help="Share of requests with a picture.")] = 0.3,
    pause_rate: Annotated[float, typer.Option(help="Pauses of a worker per second; 0 for none.")] = 3.0,
    pause_s: Annotated[float, typer.Option("--pause", help="Their mean length in seconds.")] = 0.3,
    load: Annotated[int, typer.Option(help="Processes that keep a core busy meanwhile.")] = 0,
    only: Annotated[int | None, typer.Option("--round", help="Play this round over and over.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write what all records say to this Markdown file.")
    ] = None,
) -> None:
    """Ask the rollout for many rounds while its workers are paused at random; say how often it hangs.

    Goes on with the record of an earlier soak of the same name. Exit codes: 0 no remedy hung (as shipped it
    may), 1 one did or a round failed, 2 wrong usage, wrong packages or unreadable input, 130 and 143
    interrupted.
    """
    from lockstep.experiments.soak import command
    from lockstep.experiments.stress.session import SetupError

    try:
        options = command.Options(
            minutes=stress_minutes,
            seed=seed,
            remedies=tuple(remedy or command.REMEDIES),
            name=name,
            requests=command.span(requests),
            max_tokens=command.span(max_tokens),
            pictures=pictures,
            pause_rate=pause_rate,
            pause_s=pause_s,
            load=load,
            only=only,
        )
        tallies = command.run(device, out=out, options=options, page=page)
    except SetupError as error:
        fail(str(error))
    raise typer.Exit(1 if any(map(command.is_wrong, tallies)) else 0)
