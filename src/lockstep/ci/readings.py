"""The ways in which a text can be read: without colours, with escapes undone, with lines joined.

A secret is found in a reading and hidden in the text itself: a reading knows where each of its bytes stood.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

from lockstep.ci.secret_rules import Span

DEEP = 2
"""How often escapes of escapes are undone, and base64 in base64."""

_COLOUR = re.compile(
    rb"(?:\x1b\[|\xc2\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[@-Z\\^_]"
    rb"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xe2\x80[\x8b-\x8f]|\xef\xbb\xbf|\xc2\xad"
)
"""Sequences of a terminal, and characters that are not seen."""
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[0-7]{3}|[nrte]|[^\w\s])")
_ENTITY = re.compile(rb"&(?:amp|lt|gt|quot|apos|#\d{1,6}|#[xX][0-9a-fA-F]{1,5});")
_PERCENT = re.compile(rb"%[0-9a-fA-F]{2}")
_BREAK = re.compile(rb"[\r\n]+[ \t]*")
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"e": b"\x1b"}


class Reading:
    """A text with pieces exchanged."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._here: list[int] = [0]
        self._there: list[int] = [0]
        self._under: Reading | None = None

    def exchanged(self, pattern: re.Pattern[bytes], instead: Callable[[bytes], bytes]) -> Reading | None:
        """Return the reading with every match exchanged; None if there is no match."""
        parts: list[bytes] = []
        here, there, size, last = [0], [0], 0, 0
        for match in pattern.finditer(self.data):
            piece = instead(match[0])
            parts += (self.data[last : match.start()], piece)
            size += match.start() - last
            here.append(size)
            there.append(match.start())
            size += len(piece)
            here.append(size)
            there.append(match.end())
            last = match.end()
        if not parts:
            return None
        reading = Reading(b"".join((*parts, self.data[last:])))
        reading._here, reading._there, reading._under = here, there, self
        return reading

    def origin(self, span: Span) -> Span:
        """Return where `span` stood in the text that all began with."""
        if self._under is None:
            return span
        first, last = self._at(span[0]), self._at(span[1] - 1) + 1
        after = bisect_right(self._here, span[1]) - 1
        if self._here[after] == span[1]:
            # Up to the end of the piece that was exchanged, not to its first byte alone.
            last = max(last, self._there[after])
        return self._under.origin((first, max(first + 1, last)))

    def begins_a_word(self, at: int) -> bool:
        """Return whether the byte at `at` began a word in the text before pieces were exchanged."""
        if self._under is None:
            return not (self.data[at - 1 : at].isalnum() or self.data[at - 1 : at] == b"_") or at == 0
        return self._under.begins_a_word(self._at(at))

    def _at(self, place: int) -> int:
        index = bisect_right(self._here, place) - 1
        found = self._there[index] + place - self._here[index]
        return min(found, self._there[index + 1]) if index + 1 < len(self._there) else found


def readings(data: bytes) -> Iterator[tuple[Reading, bool]]:
    """Yield the text as it is and in every way it can be read, each with whether its lines are joined."""
    reading = Reading(data)
    yield reading, False
    if joined := reading.exchanged(_BREAK, _nothing):
        yield joined, True
    changed = False
    for pattern, instead in (
        (_COLOUR, _nothing),
        *((_ESCAPE, _unescaped), (_COLOUR, _nothing)) * DEEP,
        *((_ENTITY, _entity), (_PERCENT, _percent)) * DEEP,
        (_COLOUR, _nothing),
    ):
        if other := reading.exchanged(pattern, instead):
            reading, changed = other, True
            yield reading, False
    if changed and (joined := reading.exchanged(_BREAK, _nothing)):
        yield joined, True


def _nothing(found: bytes) -> bytes:
    return b""


def _unescaped(found: bytes) -> bytes:
    kind = found[1:2]
    if kind in (b"u", b"x"):
        return chr(int(found[2:], 16)).encode(errors="replace")
    if kind.isdigit():
        return bytes([int(found[1:], 8) & 255])
    return _LETTERS.get(kind, kind)


def _entity(found: bytes) -> bytes:
    return html.unescape(found.decode()).encode(errors="replace")


def _percent(found: bytes) -> bytes:
    return bytes([int(found[1:], 16)])
