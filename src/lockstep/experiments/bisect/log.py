"""What was tried, one JSON object a line, appended: a bisection goes on from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec


class LogError(RuntimeError):
    """The log is not what it should be; names file and line."""


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One release tried."""

    package: str
    release: str
    device: str
    arm: str
    wanted: dict[str, str] = {}
    """Releases of other packages that were asked for."""
    outcome: str
    """good, bad, refuses or untestable."""
    reason: str
    moved: dict[str, tuple[str | None, str | None]] = {}
    """Package -> pinned release and the one in this environment, where they differ; None: not there."""
    group: str = ""
    seconds: float = 0.0
    at: str = ""
    """UTC, ISO 8601."""
    source: bool = False
    """Built from a checkout: `release` is the commit then."""

    def question(self) -> tuple[Any, ...]:
        """What was asked: tries of one question are of one bisection."""
        return (self.package, self.device, self.arm, tuple(sorted(self.wanted.items())), self.source)


def read(path: Path) -> list[Try]:
    """All tries, the last of each release and question; empty without a log. Raises LogError."""
    if not path.exists():
        return []
    tries: dict[tuple[Any, ...], Try] = {}
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = msgspec.json.decode(line, type=Try)
        except msgspec.MsgspecError as error:
            if number == len(lines):  # cut off while it was written
                break
            raise LogError(f"{path}:{number}: expected a release that was tried, got: {error}") from error
        tries.pop((one.question(), one.release), None)
        tries[one.question(), one.release] = one
    return list(tries.values())


def append(path: Path, one: Try) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as log:
        log.write(("\n" if torn else "") + json.dumps(msgspec.to_builtins(one)) + "\n")
