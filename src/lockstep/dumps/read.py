"""Flight recorder files of a directory, whatever their number, prefix and form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .collect import Collector
from .errors import MAX_FILE, DumpError, Malformed
from .jsoned import read_json
from .model import Dump, Operations
from .pickled import PickledDump

_NAME = re.compile(r"(?P<prefix>.*?)(?P<rank>\d{1,7})(?:\.(?:json|pkl|pickle|bin|dump|trace))?\Z")


@dataclass
class DumpSet:
    """All dumps of a directory.

    `damaged` are those of which only the first records could be read, `failed` the files that should have
    been dumps and of which nothing could.
    """

    dumps: list[Dump] = field(default_factory=list)
    operations: Operations = field(default_factory=Operations)
    failed: list[DumpError] = field(default_factory=list)
    damaged: list[Dump] = field(default_factory=list)


def read_directory(directory: str | Path) -> DumpSet:
    """Reads every file whose name ends in a rank (`nccl_trace_rank_12`, `rank_3.json`). DumpError if none can
    be read.
    """
    root = Path(directory)
    try:
        if not root.is_dir():
            what = "not a directory" if root.exists() else "no such directory"
            raise DumpError(str(root), None, f"{what}: expected a directory with flight recorder dumps")
        named = [
            (found, path) for path in root.iterdir() if (found := _NAME.match(path.name)) and path.is_file()
        ]
    except OSError as error:
        raise DumpError(str(root), None, f"cannot list it: {error.strerror or error}") from error
    if not named:
        raise DumpError(
            str(root),
            None,
            "no dump here: expected files named by a prefix and a rank, such as nccl_trace_rank_0",
        )
    found_set = DumpSet()
    for found, path in sorted(
        named, key=lambda item: (item[0]["prefix"], int(item[0]["rank"]), item[1].name)
    ):
        try:
            dump = read_dump(path, found_set.operations, found["prefix"], int(found["rank"]))
        except DumpError as error:
            found_set.failed.append(error)
        else:
            (found_set.damaged if dump.damage else found_set.dumps).append(dump)
    if not found_set.dumps and not found_set.damaged:
        more = f" (and {len(found_set.failed) - 1} more)" if len(found_set.failed) > 1 else ""
        first = found_set.failed[0]
        raise DumpError(first.path, first.place, first.what + more)
    return found_set


def read_dump(path: Path, operations: Operations, prefix: str, rank: int, *, fast: bool = True) -> Dump:
    """One file, pickled or JSON. Raises DumpError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise DumpError(str(path), None, f"cannot read it: {error.strerror or error}") from error
    return parse(data, Dump(str(path), prefix, rank, ""), operations, fast=fast)


def parse(data: bytes, dump: Dump, operations: Operations, *, fast: bool = True) -> Dump:
    """The bytes of one file into `dump`. If only its first records can be read, `dump.damage` says why.

    Raises DumpError, and nothing else, whatever the bytes are, if no record can be read.
    """
    collector = Collector(dump, operations)
    too_large = len(data) > MAX_FILE
    try:
        if too_large:
            data = data[:MAX_FILE]
        if data[:1] == b"\x80":
            PickledDump(data, collector, fast=fast).read()
        elif data.lstrip()[:1] == b"{":
            read_json(data, collector)
        else:
            raise Malformed(
                0,
                "expected a pickle of protocol 2 or later, or a JSON object" if data else "the file is empty",
            )
    except Malformed as error:
        dump.damage = DumpError(dump.path, error.place, error.what)
    if too_large:
        what = f"the file is larger than {MAX_FILE} bytes, which is more than a dump has"
        dump.damage = DumpError(dump.path, MAX_FILE, what)
    collector.finish()
    if dump.damage and not any(trace.told for trace in dump.traces.values()):
        raise dump.damage
    return dump
