"""Opens what a person names: files, folders, standard input; plain, gzip or zstd. Always as a stream.

What can be read of a damaged file is used, and the damage is named. Memory is bounded whatever a file claims.
"""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STDIN = "-"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SAMPLE = 4096
_MAX_FILES = 10_000
_MAX_WINDOW = 1 << 27
"""Bytes of memory that a zstd file may ask for: the limit of the zstd command, too."""
_MAX_GROWTH = 2_000
"""A compressed file may grow by this factor, beyond the first `_FREE` bytes. Logs grow by 5 to 300."""
_FREE = 1 << 30
_STEP = 1024  # compressed bytes at a time: zstd can make 32 MiB of them, and they are held at once


class InputError(Exception):
    """An input cannot be read. The text says which, and what was expected."""


@dataclass
class Found:
    """The files to read, and a sentence for each path below a folder that could not be looked at."""

    files: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def find(paths: Sequence[str]) -> Found:
    """Return the files named, and all that look like text below the folders named, in order of name.

    Raises InputError for a path that does not exist or cannot be opened, and for a folder without a file
    that looks like a log.
    """
    found = Found()
    for path in paths:
        if path == STDIN or not Path(path).is_dir():
            if path != STDIN and not Path(path).exists():
                raise InputError(f"{path}: no such file or directory")
            found.files.append(path)
            continue
        below = _below(path, found)
        if not below:
            why = "; ".join(f"{name}: {reason}" for name, reason in list(found.unreadable.items())[:3])
            raise InputError(
                f"{path}: no log in this directory: expected text files, plain or compressed by gzip or zstd"
                + (f" ({why})" if why else "")
            )
        found.files += below
    found.files = list(dict.fromkeys(found.files))
    if len(found.files) > _MAX_FILES:
        raise InputError(f"{len(found.files)} files: more than {_MAX_FILES}; name those of one job")
    return found


def _below(path: str, found: Found) -> list[str]:
    """Return the logs below a folder. Links to folders are not followed."""

    def refused(error: OSError) -> None:
        if error.filename == path:
            raise InputError(f"{path}: {error.strerror or error}") from error
        found.unreadable[str(error.filename)] = error.strerror or str(error)

    below: list[str] = []
    for folder, _, names in os.walk(path, onerror=refused):
        for name in names:
            file = Path(folder, name)
            try:
                if file.is_file() and _looks_like_log(file):
                    below.append(str(file))
            except OSError as error:
                found.unreadable[str(file)] = error.strerror or str(error)
    return sorted(below)


class Stream:
    """Decompressed bytes. `damage` says why they end before the file does; None if all could be read."""

    def __init__(self, source: Any, raw: Any) -> None:
        self._source = source
        self._raw = raw
        self._given = 0
        self.damage: str | None = None

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes; none at the end, or where the file is damaged."""
        if self.damage:
            return b""
        try:
            part: bytes = self._source.read(size)
        except (EOFError, zlib.error, OSError) as error:
            self.damage = _reason(error)
            return b""
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            self.damage = _reason(error)
            return b""
        self._given += len(part)
        if self._given > _FREE and self._source is not self._raw and not self._in_proportion():
            self.damage = f"it grows more than {_MAX_GROWTH} fold: unpack it yourself if that is right"
            return b""
        return part

    def _in_proportion(self) -> bool:
        try:
            return self._given <= _FREE + _MAX_GROWTH * int(self._raw.tell())
        except (OSError, ValueError):  # a pipe
            return True


def _reason(error: Exception) -> str:
    text = str(getattr(error, "strerror", None) or error)
    if "too much memory" in text:
        return (
            f"it wants more than {_MAX_WINDOW >> 20} MiB of memory to be unpacked; "
            "if that is right: zstd -dc --long=31 FILE | lockstep diagnose -"
        )
    return text


@contextmanager
def opened(path: str) -> Iterator[Stream]:
    """Open a file for reading its decompressed bytes. Raises InputError if it cannot be opened or is not
    text.
    """
    try:
        if path == STDIN:
            if sys.stdin is None or sys.stdin.closed:
                raise InputError("standard input: it is closed: expected a log")
            yield _decompressed(sys.stdin.buffer, "standard input")
        else:
            with io.BufferedReader(io.FileIO(path), 1 << 20) as raw:
                yield _decompressed(raw, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _decompressed(raw: Any, name: str) -> Stream:
    sample = raw.peek(_SAMPLE)[:_SAMPLE]
    if sample.startswith(_GZIP):
        return Stream(_Unpacked(raw, lambda: zlib.decompressobj(31)), raw)
    if sample.startswith(_ZSTD):
        return Stream(_Unpacked(raw, _zstd(name)), raw)
    if sample.count(0) > len(sample) // 4:
        raise InputError(f"{name}: not a log: expected text, plain or compressed by gzip or zstd")
    return Stream(raw, raw)


class _Unpacked:
    """The members or frames of a compressed file, one after another. An end within one is an error."""

    def __init__(self, raw: Any, begin: Callable[[], Any]) -> None:
        self._raw = raw
        self._begin = begin
        self._part: Any = None
        self._rest = b""

    def read(self, _size: int) -> bytes:
        """Return the next decompressed bytes, as many as there happen to be; none at the end."""
        while True:
            data = self._rest or self._raw.read(_STEP)
            self._rest = b""
            if not data:
                if self._part is not None:
                    raise EOFError("it ended before its compressed data did")
                return b""
            if self._part is None:
                data = data.lstrip(b"\0")  # tapes and block devices pad what they hold
                if not data:
                    continue
                self._part = self._begin()
            found: bytes = self._part.decompress(data)
            if self._part.eof:
                self._rest, self._part = self._part.unused_data, None
            if found:
                return found


def _zstd(name: str) -> Callable[[], Any]:
    try:
        import zstandard
    except ImportError:
        raise InputError(
            f"{name}: compressed by zstd, which needs the package zstandard: pip install zstandard, "
            "or pipe it: zstd -dc FILE | lockstep diagnose -"
        ) from None
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj


def _looks_like_log(file: Path) -> bool:
    with file.open("rb") as raw:
        sample = raw.read(_SAMPLE)
    return sample.startswith((_GZIP, _ZSTD)) or b"\0" not in sample
