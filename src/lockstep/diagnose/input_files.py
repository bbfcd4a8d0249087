"""Opens what a person names: files, directories, standard input; plain, gzip or zstd. Always as a stream."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

STDIN = "-"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SAMPLE = 4096
_MAX_FILES = 10_000


class InputError(Exception):
    """An input cannot be read. The text says which, and what was expected."""


def find(paths: Sequence[str]) -> list[str]:
    """The files to read: those named, and all that look like text below the directories named, in order of
    name.

    Raises InputError for a path that does not exist and for a directory without a file that looks like a log.
    """
    files: list[str] = []
    for path in paths:
        if path == STDIN or not Path(path).is_dir():
            if path != STDIN and not Path(path).exists():
                raise InputError(f"{path}: no such file or directory")
            files.append(path)
            continue
        below = [
            str(file) for file in sorted(Path(path).rglob("*")) if file.is_file() and _looks_like_log(file)
        ]
        if not below:
            raise InputError(
                f"{path}: no log in this directory: expected text files, plain or compressed by gzip or zstd"
            )
        files += below
    if len(files) > _MAX_FILES:
        raise InputError(f"{len(files)} files: more than {_MAX_FILES}; name those of one job")
    return list(dict.fromkeys(files))


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed. Raises InputError if it cannot be opened or is not text."""
    try:
        if path == STDIN:
            yield _decompressed(sys.stdin.buffer, "standard input")
        else:
            with io.BufferedReader(io.FileIO(path), 1 << 20) as raw:
                yield _decompressed(raw, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _decompressed(raw: Any, name: str) -> BinaryIO:
    sample = raw.peek(_SAMPLE)[:_SAMPLE]
    if sample.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if sample.startswith(_ZSTD):
        return _zstd(raw, name)
    if sample.count(0) > len(sample) // 4:
        raise InputError(f"{name}: not a log: expected text, plain or compressed by gzip or zstd")
    return cast(BinaryIO, raw)


def _zstd(raw: Any, name: str) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise InputError(
            f"{name}: compressed by zstd, which needs the package zstandard: pip install zstandard, "
            "or pipe it: zstd -dc FILE | lockstep diagnose -"
        ) from None
    return cast(
        BinaryIO,
        zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(raw, read_across_frames=True),
    )


def _looks_like_log(file: Path) -> bool:
    try:
        with file.open("rb") as raw:
            sample = raw.read(_SAMPLE)
    except OSError:
        return False
    return bool(sample) and (sample.startswith((_GZIP, _ZSTD)) or b"\0" not in sample)
