"""A summary.json that grows run by run: one row for each thing that has been tried."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class RowsError(ValueError):
    """A summary cannot be read; the message names the file and what was expected."""


def read_rows(summary: Path, fields: Sequence[str]) -> dict[str, Row]:
    """Rows by their first field; none where there is no file. Raises RowsError unless every row has all of
    `fields`, and OSError. What it refuses is somebody else's, and must not be written over.
    """
    if summary.is_symlink():
        raise RowsError(f"{summary}: a link: expected a file that lockstep wrote; give another --out")
    if not summary.exists():
        return {}
    expected = (
        f"expected a list of objects with {', '.join(fields)}, as earlier runs write it; "
        "remove it, or give another --out"
    )
    try:
        rows = json.loads(summary.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RowsError(f"{summary}: not JSON: {error}: {expected}") from error
    if not isinstance(rows, list):
        raise RowsError(f"{summary}: no list: {expected}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not set(fields) <= set(row):
            raise RowsError(f"{summary}: row {number} is none: {expected}")
    return {str(row[fields[0]]): row for row in rows}


def write_rows(rows: Iterable[Row], summary: Path) -> None:
    """Whole or not at all. Raises OSError."""
    summary.parent.mkdir(parents=True, exist_ok=True)
    # A new name: a file that is there already, or a link, may be somebody else's.
    number, name = tempfile.mkstemp(prefix=".summary-", suffix=".part", dir=summary.parent)
    part = Path(name)
    try:
        with os.fdopen(number, "w") as file:
            file.write(json.dumps(list(rows), indent=2) + "\n")
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        part.replace(summary)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
