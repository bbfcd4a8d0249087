"""A run's summary.json as Markdown, for a CI job's page. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.report.safe_text import markdown as markdown_text

COLUMNS = ("run", "fault", "remedy", "verdict", "", "to verdict", "in all")


def markdown(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """A table of the runs, and below it a sentence for each that did not end as it must."""
    wrong = [row for row in rows if not row["as_expected"]]
    if not rows:
        return f"## {markdown_text(title)}: no run\n"
    result = f"{len(wrong)} of {len(rows)} runs did not end as they must"
    lines = [f"## {markdown_text(title)}: {result if wrong else 'all runs ended as they must'}", ""]
    lines += [_line(COLUMNS), _line("---" for _ in COLUMNS)]
    for row in rows:
        fault = row["fault"]["name"] if row["fault"] else "none"
        verdict = row.get("verdict", "-")
        group = f" ({row['group']}: {_ranks(row)})" if row.get("group") else ""
        spent = (f"{row[name]} s" if name in row else "-" for name in ("seconds_to_verdict", "seconds"))
        ended = "as it must" if row["as_expected"] else "**WRONG**"
        lines.append(_line((row["name"], fault, row["remedy"] or "none", verdict + group, ended, *spent)))
    lines.extend(f"\n**{markdown_text(row['name'])}**: {markdown_text(row['wrong'])}" for row in wrong)
    return "\n".join(lines) + "\n"


def _ranks(row: Mapping[str, Any]) -> str:
    return f"{_list(row['waiting'])} waits, {_list(row['absent'])} absent"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"


def _line(cells: Any) -> str:
    return f"| {' | '.join(map(markdown_text, cells))} |"
