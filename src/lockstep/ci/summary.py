"""The job's page and JUnit's XML from a run's summary.json.

`python -m lockstep.ci.summary RUNS [--page FILE]`: writes RUNS/junit.xml and appends to FILE, or prints. Exit
code 1 if a run did not end as it must or there was none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.guard import guarded
from lockstep.report.junit import junit
from lockstep.report.page import markdown


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Sum up a run for a CI system.")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--title", default="gpu_stress")
    options = parser.parse_args(arguments)
    rows, problem = _read(options.runs / "summary.json")
    begun = _begun(options.runs / "run.json")
    title, kind = options.title, "No result"
    if begun and begun["refused"]:
        rows, kind, problem = [], "Did not run", "; ".join(begun["refused"])
    elif rows and (lacking := _lacking(rows, begun)):
        kind, problem = "Not complete", lacking
    text = markdown(rows, title) if rows and not problem else f"## {title}: {kind}: {problem}\n"
    if rows and problem:
        text += "\n" + markdown(rows, "What there is")
    text += _about(begun, bool(rows) and not problem and all(row["as_expected"] for row in rows))
    if options.page is None:
        print(text)
    else:
        with options.page.open("a") as page:
            page.write(text)
    if problem:
        rows = [*rows, _problem(kind, problem, options.runs)]
    if options.runs.is_dir():
        (options.runs / "junit.xml").write_text(junit(rows, title))
    return 0 if rows and all(row["as_expected"] for row in rows) else 1


def _begun(path: Path) -> dict[str, Any]:
    """What ci/run.sh wrote when the run began; empty where it was started otherwise."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        return {
            "refused": [str(why) for why in found["refused"]],
            **{name: str(found[name]) for name in ("begin", "commit", "host")},
            "versions": dict(found["versions"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {
            "refused": [f"{path}: cannot be read: {type(error).__name__} {error}"],
            "begin": "unknown", "commit": "unknown", "host": "unknown", "versions": {},
        }  # fmt: skip


def _lacking(rows: Sequence[dict[str, Any]], begun: dict[str, Any]) -> str:
    """Why the rows are not all of this run; empty if they are."""
    if begun and any(str(row.get("begin", "")) < begun["begin"] for row in rows):
        return f"summary.json is of another run than the one that began {begun['begin']}"
    planned: list[Any] = next((row["planned"] for row in rows if isinstance(row.get("planned"), list)), [])
    missing = [str(name) for name in planned if name not in {row["name"] for row in rows}]
    return f"not run: {', '.join(missing)}" if missing else ""


def _problem(name: str, told: str, runs: Path) -> dict[str, Any]:
    """A row without a verdict: JUnit counts it as an error."""
    row: dict[str, Any] = dict.fromkeys(("fault", "remedy"))
    return row | {
        "name": name, "expected": "a verdict", "as_expected": False, "wrong": told, "ledgers": str(runs)
    }  # fmt: skip


def _about(begun: dict[str, Any], good: bool) -> str:
    meaning = (
        "The job ran and ended as expected: with the fault it hangs and is found out, with the cure it runs."
        if good
        else "Nothing is proven about this version. What to do with a red night: docs/ci.md#a-red-night."
    )
    where = ""
    if begun:
        versions = ", ".join(f"{name} {number}" for name, number in begun["versions"].items())
        where = f"\n\nBegun {begun['begin']} on {begun['host']}, commit {begun['commit']}; {versions}."
    return f"\n{meaning}{where.replace('<', '&lt;')}\n"


def _read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The runs, and why there are none to show."""
    try:
        rows = json.loads(path.read_text())
    except OSError as error:
        return [], f"{path}: {error.strerror}: the run ended before its first arm"
    except ValueError as error:
        return [], f"{path}: not JSON: {error}"
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "as_expected" in row for row in rows):
        return [], f"{path}: expected a list with an object for each run"
    return rows, "" if rows else f"{path}: no run: it ended before its first arm"


if __name__ == "__main__":
    guarded(lambda: main(sys.argv[1:]))
