"""What a file holds, as text if it is one: unpacked, as UTF-8, and no more of it than told.

Standard library only; zstd files need the package zstandard, and are left out where it is not installed.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from dataclasses import dataclass
from typing import IO

from lockstep.ci.redact import NotUnderstood, Redactor

HEAD_SHARE = 0.25
"""Of a file that is cut: how much is from its begin; the rest is from its end."""
MARGIN = 1 << 16
"""Bytes on either side of a cut that are searched and then dropped: a secret must not be cut in two."""
STRANGE_SHARE = 0.01
"""Of a text: how many characters may be no UTF-8, as where a log was cut. They become question marks."""
ZSTD_WINDOW = 1 << 27
"""Largest window that a compressed file may ask for, in bytes: a small file can ask for gigabytes."""
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
PACKED = {GZIP: b".gz", ZSTD: b".zst"}


@dataclass(frozen=True)
class Content:
    """What may be handed on of a file."""

    data: bytes
    note: str = ""
    """What was done to it, for the manifest."""
    suffix: bytes = b""
    """End of its name that is not true of `data` any more: `.gz`."""


def content(handle: int, limit: int, redactor: Redactor) -> Content:
    """Return what may be handed on of an open file, about `limit` bytes at most.

    Raises OSError; NotUnderstood if nothing of it may be handed on.
    """
    with os.fdopen(os.dup(handle), "rb") as file:
        size = os.fstat(handle).st_size
        first = file.read(4)
        file.seek(0)
        packed = next((kind for kind in PACKED if first.startswith(kind)), None)
        if packed is not None:
            if size > limit:
                raise NotUnderstood(f"a packed file of {size} bytes: more than {limit}")
            plain, whole, damage = _unpacked(file, packed, limit + _margin(limit))
            text = _text(plain)
            if text is None:
                raise NotUnderstood("a packed file with something in it that is no text")
            done = redactor.text(text)
            note = ", unpacked" + (f"; damaged: {damage}" if damage else "" if whole else "; not to its end")
            return Content(done if whole and not damage else _begin(done, limit), note, PACKED[packed])
        if size <= limit:
            data = file.read(limit)
            text = _text(data)
            return Content(redactor.binary(data) if text is None else redactor.text(text))
        return Content(_ends(file, size, limit, redactor), ", cut")


def clean(data: bytes, redactor: Redactor) -> bytes:
    """Return what a program has printed, as text without secrets. Raises NotUnderstood."""
    text = _text(data)
    if text is None:
        raise NotUnderstood("no text")
    return redactor.text(text)


def _margin(limit: int) -> int:
    return min(MARGIN, limit // 16)


def _ends(file: IO[bytes], size: int, limit: int, redactor: Redactor) -> bytes:
    """Return begin and end of a text, cut at ends of lines, with a line between them that says so."""
    head, margin = int(limit * HEAD_SHARE), _margin(limit)
    first, code = _decoded_part(file.read(head + margin), None, size)
    # On a character's begin in UTF-16 too.
    file.seek((size - (limit - head) - margin) & ~1)
    last, _ = _decoded_part(file.read(limit - head + margin), code, size)
    first, last = _begin(redactor.text(first), head), redactor.text(last)
    cut = last.find(b"\n", 2 * margin)
    last = last[cut + 1 :] if cut >= 0 else b""
    return first + f"[about {max(size - limit, 1)} bytes left out here]\n".encode() + last


def _decoded_part(data: bytes, code: str | None, size: int) -> tuple[bytes, str]:
    code = code or _code(data)
    text = None if code is None else _text(data, code)
    if code is None or text is None:
        raise NotUnderstood(f"{size} bytes that are no text: more than is searched")
    return text, code


def _begin(redacted: bytes, limit: int) -> bytes:
    """Return the begin of a text that was searched for secrets with a margin, up to an end of line."""
    # What is hidden may be longer than what was there, but not twice as long.
    kept = redacted[: max(0, min(limit, len(redacted) - 2 * _margin(limit)))]
    return kept[: kept.rfind(b"\n") + 1]


def _unpacked(file: IO[bytes], kind: bytes, limit: int) -> tuple[bytes, bool, str]:
    """Return at most `limit` bytes, whether that is all, and what is damaged. Raises NotUnderstood."""
    reader: gzip.GzipFile | IO[bytes]
    errors: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    if kind == GZIP:
        reader = gzip.GzipFile(fileobj=file)
    else:
        try:
            import zstandard
        except ImportError:
            raise NotUnderstood("a zstd file, and the package zstandard is not installed") from None
        reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(
            file, read_across_frames=True
        )
        errors = (*errors, zstandard.ZstdError)
    parts: list[bytes] = []
    size = 0
    try:
        while part := reader.read(min(io.DEFAULT_BUFFER_SIZE * 8, limit + 1 - size)):
            parts.append(part)
            size += len(part)
    except errors as error:
        if not parts:
            raise NotUnderstood(f"a damaged packed file: {error}") from error
        return b"".join(parts)[:limit], False, str(error)
    return b"".join(parts)[:limit], size <= limit, ""


def _code(data: bytes) -> str | None:
    """Return the encoding of a text: UTF-8 or UTF-16; None if it is no text."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16-le" if data[:1] == b"\xff" else "utf-16-be"
    if b"\0" not in data:
        return "utf-8"
    even, odd = data[::2].count(0), data[1::2].count(0)
    if max(even, odd) * 5 < len(data) or min(even, odd) * 20 > max(even, odd):
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def _text(data: bytes, code: str | None = None) -> bytes | None:
    """Return a text in UTF-8, with a few strange bytes replaced; None if it is no text."""
    code = code or _code(data)
    if code is None:
        return None
    if code == "utf-8" and data.isascii():
        return None if b"\0" in data else data
    text = data.decode(code, errors="replace")
    strange = text.count("\ufffd")
    if strange > max(4, len(text) * STRANGE_SHARE) or "\0" in text:
        return None
    return text.removeprefix("\ufeff").replace("\ufffd", "?").encode(errors="replace")
