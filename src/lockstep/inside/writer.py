"""The writing end of a ledger: one append-only JSON Lines file (format: docs/ledger.md)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any


class LedgerWriter:
    """Appends whole lines to one file; every line is one `write`, so a killed process tears at most the last
    one.
    """

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}.jsonl"
        self._numbers = count(1)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._torn = False

    def write(self, record: dict[str, Any]) -> None:
        """Numbers the line, from 1, and appends it.

        Raises OSError when the disk does not take the whole line; what comes next starts on a line of its
        own. A line that was not written has had its number, so that a reader sees that it is missing.
        """
        numbered = {**record, "i": next(self._numbers)}
        line = json.dumps(numbered, separators=(",", ":"), ensure_ascii=False) + "\n"
        data = (b"\n" if self._torn else b"") + line.encode(errors="backslashreplace")
        written = os.write(self._fd, data)
        if written < len(data):
            self._torn = True
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes written", str(self.path))
        self._torn = False

    def close(self) -> None:
        os.close(self._fd)


def complain(what: str) -> None:
    """Tells the person who reads the log, if the log can still be written."""
    with contextlib.suppress(OSError, ValueError):
        print(f"lockstep: {what}", file=sys.stderr, flush=True)
