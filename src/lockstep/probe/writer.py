"""The writing end of a ledger: one append-only JSON Lines file (format: docs/ledger.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class LedgerWriter:
    """Appends whole lines to one file; every line is one `write`, so a killed process tears at most the last one."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{name}.jsonl"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        os.close(self._fd)
