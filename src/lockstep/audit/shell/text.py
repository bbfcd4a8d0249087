"""Reads a script and lays it out for the parser: rows of bytes, and the author's line number of each row."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from lockstep.audit.model import AuditError

MAX_BYTES = 1 << 18
"""Largest script read. Launch scripts are a few kilobytes."""
SCRIPT = "a launch script"
"""What is expected of a file, unless it is to be something else."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the text to parse and the line of the script that it comes from, counted from 1."""

    text: str
    line: int


class Layout:
    """Rows put together: bytes for the parser, and the way back from a byte to the author's line."""

    def __init__(self, path: str, rows: list[Row]) -> None:
        self.path = path
        self.rows = rows
        self.starts: list[int] = []
        size = 0
        for row in rows:
            self.starts.append(size)
            size += len(row.text.encode()) + 1
        self.data = "".join(row.text + "\n" for row in rows).encode()

    def row(self, offset: int) -> int:
        return max(0, bisect_right(self.starts, offset) - 1)

    def line(self, offset: int) -> int:
        """The author's line, counted from 1, of a byte of `data`."""
        return self.rows[self.row(offset)].line if self.rows else 1


def read(path: Path, expected: str = SCRIPT) -> str:
    """A script's text as it is on disk, line ends included. Raises AuditError for what is no readable text,
    which says what was `expected`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or error
        raise AuditError(f"{path}: cannot be read: {reason}: expected {expected}") from error
    return decode(data, str(path), expected)


def decode(data: bytes, path: str, expected: str = SCRIPT) -> str:
    """Text of a script's bytes: UTF-8, or the encoding of Chinese Windows where it is not. Raises
    AuditError."""
    if len(data) > MAX_BYTES:
        raise AuditError(f"{path}: larger than {MAX_BYTES >> 10} KiB: expected {expected}")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise AuditError(f"{path}:{line}: a NUL byte: expected {expected}, this is a binary file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        try:
            text = data.decode("gb18030")
        except UnicodeDecodeError:
            line = data.count(b"\n", 0, error.start) + 1
            raise AuditError(
                f"{path}:{line}: neither UTF-8 nor GB 18030 text: expected {expected}, this looks like "
                "a binary file"
            ) from None
    if not text.strip():
        raise AuditError(f"{path}:1: empty: expected {expected}")
    return text


def split(text: str) -> list[str]:
    """Lines without their ends: LF, CR LF or CR."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return lines
