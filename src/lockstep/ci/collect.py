"""Puts what explains a run into one folder that may leave the host: without secrets, and no larger than told.

`python -m lockstep.ci.collect RUNS TO`: RUNS is what `lockstep run --out` was given. Of its newest run come
the summary, the ledgers, the logs and the evidence (dumps, stacks, NCCL's reports), besides versions and
nvidia-smi. Checkpoints do not. What cannot be searched for secrets is left out and named in the manifest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.ci.contents import clean, content
from lockstep.ci.folders import FILES, Found, files
from lockstep.ci.redact import HIDDEN, NotUnderstood, Redactor
from lockstep.guard import guarded

FILE_MIB = 20
TOTAL_MIB = 200
NAME_BYTES = 120
"""Longest name of a file or a folder in what is collected."""
MANIFEST = "MANIFEST.txt"

_NOT_IN_NAMES = frozenset('":<>|*?\\/')
"""What file systems and stores of artifacts refuse."""
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
        self._names: dict[tuple[str, bytes], str] = {}
        self._taken: set[str] = {MANIFEST.casefold()}

    def run(self, runs: Path, programs: Sequence[tuple[str, list[str]]]) -> None:
        """Collect the newest run in `runs`, and what each of `programs` (name, command) prints."""
        self._to.mkdir(parents=True, exist_ok=True)
        self._learn(runs)
        for name, command in programs:
            place = self._name((name.encode(),))
            try:
                self._write(place, clean(_output(command)[: self._file_bytes], self._redactor))
            except NotUnderstood as why:
                self._manifest.append(f"{place}: left out: {why}")
        for number, found in enumerate(files(os.fsencode(runs))):
            if number >= FILES:
                self._manifest.append(f"all further files: left out: more than {FILES}")
                break
            self._add(found)
        (self._to / MANIFEST).write_text("\n".join(self._manifest) + "\n")

    def _learn(self, runs: Path) -> None:
        """Learn the secrets that the commands were given: they may be anywhere in the logs."""
        for found in files(os.fsencode(runs)):
            if found.place[-1].endswith(b".command.json") and found.handle >= 0:
                try:
                    self._redactor.learn(json.loads(os.pread(found.handle, self._file_bytes, 0)))
                except (ValueError, OSError, RecursionError):
                    continue  # as a text it is searched all the same
            elif len(found.place) > 2:
                break  # the commands come first

    def _add(self, found: Found) -> None:
        if found.why_not:
            self._manifest.append(f"{self._name(found.place)}: left out: {found.why_not}")
            return
        try:
            got = content(found.handle, self._file_bytes, self._redactor)
        except (OSError, NotUnderstood) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self._manifest.append(f"{self._name(found.place)}: left out: {why}")
            return
        name = found.place[-1].removesuffix(got.suffix) or found.place[-1]
        self._write(self._name((*found.place[:-1], name), found.place[-1]), got.data, got.note)

    def _write(self, place: str, data: bytes, note: str = "") -> None:
        if len(data) > self._left:
            self._manifest.append(f"{place}: left out: {len(data)} bytes are more than is left of the limit")
            return
        self._left -= len(data)
        target = self._to / place
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(data)
        self._manifest.append(f"{place}: {len(data)} bytes{note}")

    def _name(self, place: tuple[bytes, ...], key: bytes = b"") -> str:
        """Return a name for `place` that is printable, holds no secret, and is given to no other place."""
        name = ""
        for depth, part in enumerate(place, 1):
            known = (name, key if key and depth == len(place) else part)
            if known not in self._names:
                self._names[known] = self._new_name(name, part)
            name = self._names[known]
        return name

    def _new_name(self, above: str, part: bytes) -> str:
        try:
            text = self._redactor.text(part).replace(HIDDEN, b"hidden").decode(errors="replace")
        except NotUnderstood:
            text = "hidden"
        word = "".join(
            letter if letter.isascii() and letter.isprintable() and letter not in _NOT_IN_NAMES else "_"
            for letter in text
        )[:NAME_BYTES]
        prefix = above + "/" if above else ""
        # Two parts may make a secret that neither has.
        if (
            word in (".", "..", "")
            or self._redactor.text((prefix + word).encode()) != (prefix + word).encode()
        ):
            word = "hidden"
        name, number = prefix + word, 2
        while name.casefold() in self._taken:
            name, number = f"{prefix}{word}.{number}", number + 1
        self._taken.add(name.casefold())
        return name


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
        ("versions.txt", [options.python, "-c", _ASK]),
        ("nvidia-smi.txt", ["nvidia-smi", "-q"]),
        ("nvidia-topology.txt", ["nvidia-smi", "topo", "-m"]),
    ]
    try:
        collector.run(options.runs, programs)
    except OSError as error:
        print(f"{os.fsdecode(error.filename or options.to)}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"collected in {options.to}")
    return 0


if __name__ == "__main__":
    guarded(lambda: main(sys.argv[1:]))
