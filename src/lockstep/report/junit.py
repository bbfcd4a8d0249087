"""A run's summary.json as JUnit's XML, which every CI system shows as a table of tests. Standard library
only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from lockstep.report.safe_text import lines


def junit(rows: Sequence[Mapping[str, Any]], suite: str) -> str:
    """One test case for each run of `summary.json` (see README), failed if it did not end as it must.

    A run that reached no verdict is an error, not a failure: nothing was found out.
    """
    suite = _clean(suite)
    failed = [row for row in rows if not row["as_expected"]]
    errors = [row for row in failed if "verdict" not in row]
    root = Element("testsuites")
    top = SubElement(
        root,
        "testsuite",
        name=suite,
        tests=str(len(rows)),
        failures=str(len(failed) - len(errors)),
        errors=str(len(errors)),
        time=_seconds(sum(row.get("seconds", 0.0) for row in rows)),
    )
    for row in rows:
        case = SubElement(
            top, "testcase", classname=suite, name=_clean(row["name"]), time=_seconds(row.get("seconds", 0.0))
        )
        if not row["as_expected"]:
            kind = "error" if row in errors else "failure"
            told = SubElement(case, kind, message=_clean(row["wrong"])[:500])
            told.text = _clean(f"{row['wrong']}\n\n{row.get('sentence', '')}\nledgers: {row['ledgers']}")
        SubElement(case, "system-out").text = _clean(_outline(row))
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _outline(row: Mapping[str, Any]) -> str:
    fault = row["fault"]["name"] if row["fault"] else "none"
    lines = [f"fault: {fault}; remedy: {row['remedy'] or 'none'}; must end: {row['expected']}"]
    if "verdict" in row:
        lines.append(f"verdict: {row['verdict']}. {row.get('sentence', '')}")
        lines.append(f"seconds to the verdict: {row['seconds_to_verdict']}")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.1f}"


def _clean(text: str) -> str:
    """What XML 1.0 can hold, and a terminal can show."""
    return lines(text)
