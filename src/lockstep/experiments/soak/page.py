"""What soaks have found, as a table for the terminal and as a page of Markdown, from their records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from lockstep.experiments.soak.record import Tally
from lockstep.experiments.soak.rounds import LONGEST_PAUSE_S, Settings
from lockstep.experiments.soak.statistics import interval
from lockstep.report.console import Console
from lockstep.report.safe_text import markdown

_HEAD = """# Soak

Made by `lockstep soak` (`nox -s soak -- --stress-minutes N`) from its records. A soak is the job's rollout
without its trainer: {about}, asked by HTTP as the trainer
asks it, one round after another. What is done to it comes from outside, nothing is patched for it: its
workers (the processes that add requests to the engines) are stopped and continued at random moments of a
round by SIGSTOP and SIGCONT, and other processes keep the cores busy (*load*: how many). A *hang* is a round
that is not answered while the ledgers say `stuck`; the engines are then ended and started anew, and the soak
goes on with the next round. A slow round is none. The machine was shared with other programs: its load
average is given for each soak, and differs between them.

Everything random follows from the soak's seed and the round's number: `lockstep soak --seed S --round N`
plays round N again and again, with the other settings as below.
"""


def write_page(about: str, tallies: Mapping[str, Tally], path: Path) -> None:
    """Writes the page; `tallies` by the names of their records."""
    rows = "\n".join(f"| {' | '.join(map(markdown, _row(tally)))} |" for tally in tallies.values())
    head = " | ".join(_COLUMNS)
    rule = " | ".join(["---", "---", *["---:"] * (len(_COLUMNS) - 2)])
    notes = "\n".join(_note(name, tally) for name, tally in tallies.items())
    path.write_text(
        f"{_HEAD.format(about=about)}\n| {head} |\n| {rule} |\n{rows}\n\n{_FOOT}\n## Conditions\n\n{notes}",
        encoding="utf-8",
    )


def print_table(console: Console, tallies: Sequence[Tally]) -> None:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
    for tally in tallies:
        table.add_row(*_row(tally))
    console.print(table)


def rate_text(tally: Tally) -> str:
    """`3 hangs in 512 rounds: 0.59% of them (0.12% to 1.7%)`."""
    failed = f", {len(tally.failures)} failed" if tally.failures else ""
    counts = f"{len(tally.hangs)} hangs in {tally.rounds} rounds{failed}"
    return f"{counts}: {_rate(tally)} of them ({_bounds(tally)})" if tally.rounds else counts


_COLUMNS = ("remedy", "conditions", "seed", "rounds", "hangs", "rate", "95% interval", "rounds/s")

_FOOT = """*95% interval*: Clopper and Pearson's exact one for the rate of hangs per round; where none hung,
the upper bound alone, at 95% (the exact form of the rule of three, 3/rounds). *rounds/s* counts the rounds
that were answered, without the starts of the engines.

What a soak does not have: a trainer, and so no weight sync between the rounds (docs/protocol.md tells of a
second deadlock that needs one). Its pauses are more frequent than on a healthy host; how often a job hangs by
itself depends on its host, its engines' speed and its requests, and is not what the rates say.
"""


def conditions(settings: Settings) -> str:
    """Pauses and load, in a few words."""
    pauses = (
        f"pauses {settings.pause_rate:g}/s of {settings.pause_s:g} s" if settings.pause_rate else "no pauses"
    )
    load = f", load {settings.load}" if settings.load else ""
    only = f", round {settings.only} only" if settings.only is not None else ""
    return f"{pauses}{load}{only}"


def _row(tally: Tally) -> tuple[str, ...]:
    speed = f"{tally.answered / tally.answered_s:.2f}" if tally.answered_s else ""
    return (
        tally.settings.remedy,
        conditions(tally.settings),
        str(tally.settings.seed),
        str(tally.rounds),
        str(len(tally.hangs)),
        _rate(tally),
        _bounds(tally),
        speed,
    )


def _rate(tally: Tally) -> str:
    return _percent(len(tally.hangs) / tally.rounds) if tally.rounds else ""


def _bounds(tally: Tally) -> str:
    if not tally.rounds:
        return ""
    low, high = interval(len(tally.hangs), tally.rounds)
    return f"{_percent(low)} to {_percent(high)}" if tally.hangs else f"below {_percent(high)}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.2g}%" if 0 < rate < 0.1 else f"{100 * rate:.0f}%"


def _note(name: str, tally: Tally) -> str:
    chosen = tally.settings
    hosts = markdown(", ".join(tally.hosts))
    name = markdown(name)
    loads = (
        f"load average {min(tally.loads):.1f} to {max(tally.loads):.1f}, "
        f"{sum(tally.loads) / len(tally.loads):.1f} on average"
        if tally.loads
        else "no round"
    )
    lines = [
        f"**{name}**: {chosen.remedy}, {conditions(chosen)}, seed {chosen.seed}, device {chosen.device}. "
        f"Each round {_span(chosen.requests)} requests a worker, {chosen.pictures:.0%} of them with a "
        f"picture, answers of at most {_span(chosen.max_tokens)} tokens. {tally.requests} requests in all; "
        f"engines started {_times(tally.starts)}, on {hosts}; {loads}."
    ]
    if chosen.pause_rate:
        lines.append(
            "How long a worker runs between two pauses, and how long they are, is exponentially distributed; "
            f"none is longer than {LONGEST_PAUSE_S:g} s. {tally.pauses} pauses of {tally.paused_s:.0f} s in "
            "all."
        )
    if tally.hangs:
        groups = Counter(f"{hang['group']} ({hang['cause']})" for hang in tally.hangs)
        told = markdown(", ".join(f"{group}: {count}" for group, count in groups.most_common()))
        first = tally.hangs[0]
        numbers = ", ".join(str(hang["n"]) for hang in tally.hangs[:40])
        more = f" and {len(tally.hangs) - 40} more" if len(tally.hangs) > 40 else ""
        lines.append(
            f"Hung in {told}. In rounds {numbers}{more}. Round {first['n']}: *{markdown(first['text'])}*."
        )
    lines += [f"Round {failed['n']} failed: {markdown(failed['text'])}." for failed in tally.failures]
    return "\n".join(lines) + "\n"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _span(bounds: tuple[int, int]) -> str:
    least, most = bounds
    return str(least) if least == most else f"{least} to {most}"
