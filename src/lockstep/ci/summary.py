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
    text = markdown(rows, options.title) + (f"\n{problem}\n" if problem else "")
    if options.page is None:
        print(text)
    else:
        with options.page.open("a") as page:
            page.write(text)
    if rows:
        (options.runs / "junit.xml").write_text(junit(rows, options.title))
    return 0 if rows and all(row["as_expected"] for row in rows) else 1


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
    return rows, ""


if __name__ == "__main__":
    guarded(lambda: main(sys.argv[1:]))
