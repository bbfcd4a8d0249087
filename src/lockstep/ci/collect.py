"""Puts what explains a run into one folder that may leave the host: redacted, and no larger than told.

`python -m lockstep.ci.collect RUNS TO`: RUNS is what `lockstep run --out` was given. Of its newest run come
the summary, the ledgers, the logs and the evidence (dumps, stacks, NCCL's reports), besides versions and
nvidia-smi. Checkpoints do not.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.ci.redact import NotUnderstood, Redactor
from lockstep.guard import guarded

FILE_MIB = 20
TOTAL_MIB = 200
FILES = 5000
ROOMS = ("evidence", "ledgers", "logs")
"""In order of worth: what comes first is kept when there is too much."""
HEAD_SHARE = 0.25
"""Of a file that is cut: how much is from its begin; the rest is from its end."""
STRANGE_SHARE = 0.01
"""Of a text: how many bytes may be no UTF-8, as where a log was cut. They become question marks."""
ZSTD_WINDOW = 1 << 27
"""Largest window that a compressed file may ask for, in bytes: a small file can ask for gigabytes."""
NAME_BYTES = 120

_STAMP = re.compile(r"\d{8}-\d{6}")
_ASK = """
import importlib.metadata as metadata
for line in sorted(f"{found.name}=={found.version}" for found in metadata.distributions()):
    print(line)
"""


class Collector:
    """Writes into `to`, which must be new or empty."""

    def __init__(
        self, to: Path, redactor: Redactor, file_bytes: int = FILE_MIB << 20, total: int = TOTAL_MIB << 20
    ) -> None:
        self._to, self._redactor, self._file_bytes, self._left = to, redactor, file_bytes, total
        self._manifest: list[str] = []
        self._places: set[str] = {"MANIFEST.txt"}

    def run(self, runs: Path, programs: Sequence[tuple[str, list[str]]]) -> None:
        """The newest run in `runs`, and what each of `programs` (name of the file, command) prints."""
        self._to.mkdir(parents=True, exist_ok=True)
        for name, command in programs:
            self._add(name, _output(command)[: self._file_bytes])
        for number, (source, place) in enumerate(_files(runs)):
            if number >= FILES:
                self._manifest.append(f"all further files: left out: more than {FILES}")
                break
            name = self._name(place)
            try:
                data, size = _read(source, min(self._file_bytes, self._left + 1))
                if min(size, self._file_bytes) > self._left:
                    raise NotUnderstood(f"{size} bytes are more than is left of the limit")
                self._add(name, data)
            except OSError as error:
                self._manifest.append(f"{name}: left out: {error.strerror}")
            except NotUnderstood as error:
                self._manifest.append(f"{name}: left out: {error}")
        (self._to / "MANIFEST.txt").write_text("\n".join(self._manifest) + "\n")

    def _name(self, place: Path) -> str:
        """A name for `place` that is printable, holds no secret, and is given once."""
        parts = []
        for part in place.parts:
            clean = self._redactor.text(os.fsencode(part))
            if clean != os.fsencode(part):
                clean = b"hidden"
            word = "".join(
                letter if letter.isascii() and letter.isprintable() else "_"
                for letter in clean.decode(errors="replace")
            )
            parts.append(word[:NAME_BYTES])
        name = wanted = "/".join(parts)
        if self._redactor.text(name.encode()) != name.encode():
            name = wanted = "hidden"
        number = 2
        while name in self._places:
            name, number = f"{wanted}.{number}", number + 1
        self._places.add(name)
        return name

    def _add(self, name: str, data: bytes) -> None:
        note = ""
        try:
            data, note = _unpacked(data, self._file_bytes)
            text = _text(data)
            data = self._redactor.binary(data) if text is None else self._redactor.text(text)
        except NotUnderstood as error:
            self._manifest.append(f"{name}: left out: {error}")
            return
        if len(data) > self._left:
            self._manifest.append(f"{name}: left out: {len(data)} bytes are more than is left of the limit")
            return
        self._left -= len(data)
        target = self._to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self._manifest.append(f"{name}: {len(data)} bytes{note}")


def _files(runs: Path) -> Iterator[tuple[Path, Path]]:
    """Each file with its place among what is collected. Links are not followed: they may lead anywhere."""
    for name in ("summary.json", "junit.xml"):
        if (runs / name).is_file() and not (runs / name).is_symlink():
            yield runs / name, Path(name)
    stamped = [path for path in _folders(runs) if _STAMP.fullmatch(path.name)]
    if not stamped:
        return
    newest = max(stamped)
    arms = _folders(newest)
    for arm in arms:
        for path in sorted(arm.glob("*.command.json")):
            if path.is_file() and not path.is_symlink():
                yield path, path.relative_to(newest)
    for room in ROOMS:
        for arm in arms:
            if (arm / room).is_symlink():
                continue
            for folder, inner, names in os.walk(arm / room):
                inner.sort()
                for name in sorted(names):
                    path = Path(folder, name)
                    if path.is_file() and not path.is_symlink():
                        yield path, path.relative_to(newest)


def _folders(parent: Path) -> list[Path]:
    """The folders in `parent` by name, without links; none if it is not there."""
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())


def _read(path: Path, limit: int) -> tuple[bytes, int]:
    """At most `limit` bytes of a regular file (of a larger one its begin and end), and its size.

    Raises OSError, also where a link stands there by now; NotUnderstood for a large one that is no text.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise NotUnderstood("not a regular file")
        if found.st_size <= limit:
            return file.read(limit), found.st_size
        return _ends(file, found.st_size, limit), found.st_size


def _ends(file: io.BufferedReader, size: int, limit: int) -> bytes:
    """The begin and the end of a file, cut at ends of lines, with a line between them that says so."""
    head = int(limit * HEAD_SHARE)
    first = file.read(head)
    if first[:4] in (ZSTD, GZIP + first[2:4]):
        return first + file.read(limit - head)
    if b"\0" in first:
        raise NotUnderstood(f"{size} bytes that are no text are more than a file may have")
    file.seek(size - (limit - head))
    last = file.read(limit - head)
    # A part of a line may be a part of a secret, which nothing would recognise.
    first = first[: first.rfind(b"\n") + 1]
    last = last[last.find(b"\n") + 1 :] if b"\n" in last else b""
    return first + f"[{size - len(first) - len(last)} bytes left out here]\n".encode() + last


GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def _unpacked(data: bytes, limit: int) -> tuple[bytes, str]:
    """What a gzip or zstd file holds, at most `limit` bytes, and a note that says so; other data as it is.

    Raises NotUnderstood.
    """
    if data[:2] == GZIP:
        unpack = zlib.decompressobj(wbits=31)
        try:
            plain = unpack.decompress(data, limit)
        except zlib.error as error:
            raise NotUnderstood(f"a damaged gzip file: {error}") from error
        whole = unpack.eof and not unpack.unused_data.strip(b"\0")
    elif data[:4] == ZSTD:
        try:
            import zstandard
        except ImportError:
            raise NotUnderstood("a zstd file, and the package zstandard is not installed") from None
        try:
            reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(io.BytesIO(data))
            plain, more = reader.read(limit), b""
            more = reader.read(1)
        except zstandard.ZstdError as error:
            raise NotUnderstood(f"a damaged zstd file: {error}") from error
        whole = not more
    else:
        return data, ""
    if not whole:
        # The cut may go through a secret, which nothing would recognise then.
        plain = plain[: plain.rfind(b"\n") + 1]
    return plain, ", unpacked" + ("" if whole else "; not to its end")


def _text(data: bytes) -> bytes | None:
    """The text as UTF-8, if it is one: UTF-8 or UTF-16, with a few strange bytes at most."""
    code = "utf-8"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        code = "utf-16"
    elif b"\0" in data:
        even, odd = data[::2].count(0), data[1::2].count(0)
        if max(even, odd) * 2.5 < len(data) / 2 or min(even, odd) * 20 > max(even, odd):
            return None
        code = "utf-16-le" if odd > even else "utf-16-be"
    try:
        return data.decode(code).encode() if code != "utf-8" or not data.isascii() else data
    except UnicodeError:
        text = data.decode(code, errors="replace")
        strange = text.count("\ufffd")
        if strange > max(4, len(text) * STRANGE_SHARE) or "\0" in text:
            return None
        return text.replace("\ufffd", "?").encode()


def _output(command: list[str]) -> bytes:
    program = shutil.which(command[0])
    if program is None:
        return f"{command[0]} is not there\n".encode()
    try:
        done = subprocess.run([program, *command[1:]], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n".encode()
    return done.stdout + done.stderr


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Collect what explains the newest run.")
    parser.add_argument("runs", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--python", default=sys.executable, help="of the environment whose packages to list")
    parser.add_argument("--file-mib", type=int, default=FILE_MIB)
    parser.add_argument("--total-mib", type=int, default=TOTAL_MIB)
    options = parser.parse_args(arguments)
    if options.to.exists() and any(options.to.iterdir()):
        print(f"{options.to}: expected a new or an empty folder", file=sys.stderr)
        return 2
    collector = Collector(options.to, Redactor(), options.file_mib << 20, options.total_mib << 20)
    programs = [
        ("versions.txt", [options.python, "-I", "-c", _ASK]),
        ("nvidia-smi.txt", ["nvidia-smi", "-q"]),
        ("nvidia-topology.txt", ["nvidia-smi", "topo", "-m"]),
    ]
    collector.run(options.runs, programs)
    print(f"collected in {options.to}")
    return 0


if __name__ == "__main__":
    guarded(lambda: main(sys.argv[1:]))
