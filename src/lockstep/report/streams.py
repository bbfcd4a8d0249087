"""Standard output and standard error as every command has them: safe for a terminal, whatever is printed.

Standard library only.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from lockstep.report.safe_text import lines


class OutputError(Exception):
    """What was to be printed could not be written; the message says why. No OSError: no room that deals with
    files of its own may take it for one of them."""


class PlainStream(io.TextIOBase):
    """Writes as told, to a stream whose reader may have gone: then it writes to nowhere, and the command goes
    on to its exit code."""

    def __init__(self, stream: TextIO, name: str, *, must: bool) -> None:
        """`must`: raise OutputError where it cannot be written, on a full disk say; else overlook that."""
        self._stream, self._name, self._must = stream, name, must
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal gets `?` for what it does not have

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """What is left in buffers goes to nowhere, so that the interpreter can end without another error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._must and not isinstance(error, BrokenPipeError):
            raise OutputError(f"{self._name} cannot be written: {error.strerror}") from error


class SafeStream(PlainStream):
    """Spells out every control character. It is no terminal for those who would write colours to it: they
    write to `plain`, and see to foreign text themselves (`lockstep.report.console`)."""

    def __init__(self, stream: TextIO, name: str, *, must: bool) -> None:
        super().__init__(stream, name, must=must)
        self.plain = PlainStream(stream, name, must=must)

    def isatty(self) -> bool:
        return False

    def write(self, text: str, /) -> int:
        return super().write(lines(text))


def plain(stream: TextIO) -> TextIO:
    """The stream for one who writes control characters of their own and none of others'."""
    return getattr(stream, "plain", stream)


def make_safe() -> None:
    """Makes both streams safe. Raises OutputError where standard output is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: no file that is opened later may get its number
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    sys.stderr = SafeStream(sys.stderr, "standard error", must=False)
    if sys.stdout is None:
        raise OutputError("standard output is closed: expected a place to print to")
    sys.stdout = SafeStream(sys.stdout, "standard output", must=True)
