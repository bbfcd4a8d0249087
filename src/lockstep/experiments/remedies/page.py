"""The table of remedies as a page of Markdown, from the rows of its runs alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.remedies.model import Tried
from lockstep.remedies.tried import AS_SHIPPED
from lockstep.report.safe_text import markdown

_HEAD = """# Remedies

Made by `lockstep remedies` (`nox -s remedies`) from runs of the whole job on a CPU: two trainer ranks on
gloo, a rollout of two ranks, three steps with an evaluation and a checkpoint at the end. In the third
generation the worker of rollout rank 0 pauses for 6 s after it has added the first of its requests; nothing
else is done to the job. A hang is what the supervisor found in the ledgers (`stuck`), not a timeout.

*Speed* is optimizer steps per second, from the begin of training to the last step without the 6 s pause,
against the control in the same session: the same job without fault and remedy. On two cores that other
programs use too, it is good to some ten percent. What a remedy costs on GPUs is in the last column, and
was not measured here.

| remedy | what to do | outcome | verdict | group, who waits for whom | speed | what you give up |
| --- | --- | --- | --- | --- | ---: | --- |
"""

_OUTCOMES = {"through": "comes through", "hangs": "**hangs**", "fails": "**fails**"}


def write_page(remedies: Sequence[Tried], rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes the page; remedies without a row are listed as not run."""
    by_name = {row["remedy"]: row for row in rows}
    table, notes = [], []
    for name, how, gives_up in [
        ("control", "no fault", ""),
        *((t.name, t.how, t.gives_up) for t in remedies),
    ]:
        row = by_name.get(name)
        if row is None or "verdict" not in row:
            table.append(f"| {name} | {_code(how)} | not run | | | | {gives_up} |")
        else:
            speed = f"{row['against_control']:.2f}" if row["against_control"] else ""
            outcome = _OUTCOMES.get(row["outcome"]) or markdown(row["outcome"])
            cells = (
                name,
                _code(how),
                outcome,
                markdown(row["verdict"]),
                markdown(_where(row)),
                speed,
                gives_up,
            )
            table.append(f"| {' | '.join(cells)} |")
        notes += _notes(remedies, name, row)
    text = _HEAD + "\n".join(table) + "\n"
    if notes:
        text += "\n## Notes\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"
    path.write_text(text, encoding="utf-8")


def _code(how: str) -> str:
    """Return what can be typed as code: an option, a variable, or a command with its options."""
    return f"`{how}`" if re.match(r"-|[A-Z_]+=|\w+ \w+ \.\.\. ", how) else how


def _where(row: dict[str, Any]) -> str:
    if not row["group"]:
        return ""
    waiting, absent = (", ".join(map(str, row[who])) for who in ("waiting", "absent"))
    return f"{row['group']}: {waiting} for {absent}"


def _notes(remedies: Sequence[Tried], name: str, row: dict[str, Any] | None) -> list[str]:
    notes = [f"{name}: {tried.note}." for tried in remedies if tried.name == name and tried.note]
    if row is None:
        return notes
    if not row["as_expected"]:
        notes.append(f"{name}: **not as expected**. {markdown(row.get('why') or row.get('sentence', ''))}")
    if name == AS_SHIPPED and row.get("sentence"):
        notes.append(f"{name}: {markdown(row['sentence'])}")
    return notes
