"""Puts what explains a run into one folder that may leave the host: redacted, and no larger than told.

`python -m lockstep.ci.collect RUNS TO`: RUNS is what `lockstep run --out` was given. Of its newest run come
the summary, the ledgers, the logs and the evidence (dumps, stacks, NCCL's reports), besides versions and
nvidia-smi. Checkpoints do not.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.ci.redact import Redactor
from lockstep.guard import guarded

FILE_MIB = 20
TOTAL_MIB = 200
ROOMS = ("evidence", "ledgers", "logs")
"""In order of worth: what comes first is kept when there is too much."""
HEAD_SHARE = 0.25
"""Of a file that is cut: how much is from its begin; the rest is from its end."""

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

    def run(self, runs: Path, programs: Sequence[tuple[str, list[str]]]) -> None:
        """The newest run in `runs`, and what each of `programs` (name of the file, command) prints."""
        self._to.mkdir(parents=True, exist_ok=True)
        for name, command in programs:
            self._add(Path(name), _output(command))
        for source, place in _files(runs):
            try:
                whole = source.stat().st_size <= self._file_bytes
                self._add(place, source.read_bytes() if whole else _ends(source, self._file_bytes))
            except OSError as error:
                self._manifest.append(f"{place}: left out: {error.strerror}")
        (self._to / "MANIFEST.txt").write_text("\n".join(self._manifest) + "\n")

    def _add(self, place: Path, data: bytes) -> None:
        data = self._redactor.text(data) if _is_text(data) else self._redactor.binary(data)
        if len(data) > self._left:
            self._manifest.append(f"{place}: left out: {len(data)} bytes are more than is left of the limit")
            return
        self._left -= len(data)
        target = self._to / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self._manifest.append(f"{place}: {len(data)} bytes")


def _files(runs: Path) -> Iterator[tuple[Path, Path]]:
    """Each file with its place among what is collected. Links are not followed: they may lead anywhere."""
    for name in ("summary.json", "junit.xml"):
        if (runs / name).is_file():
            yield runs / name, Path(name)
    stamped = [folder for folder in runs.glob("*") if _STAMP.fullmatch(folder.name)] if runs.is_dir() else []
    if not stamped:
        return
    newest = max(stamped)
    arms = sorted(folder for folder in newest.iterdir() if folder.is_dir())
    for arm in arms:
        for path in sorted(arm.glob("*.command.json")):
            yield path, path.relative_to(newest)
    for room in ROOMS:
        for arm in arms:
            for path in sorted((arm / room).rglob("*")):
                if path.is_file() and not path.is_symlink():
                    yield path, path.relative_to(newest)


def _ends(path: Path, limit: int) -> bytes:
    """The begin and the end of a file, cut at ends of lines, with a line between them that says so."""
    head = int(limit * HEAD_SHARE)
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(head)
        file.seek(size - (limit - head))
        last = file.read()
    first = first[: first.rfind(b"\n") + 1]
    last = last[last.find(b"\n") + 1 :]
    return first + f"[{size - len(first) - len(last)} bytes left out here]\n".encode() + last


def _is_text(data: bytes) -> bool:
    if b"\\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.end >= len(data)  # a character that was cut in two
    return True


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
