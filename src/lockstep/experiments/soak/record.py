"""The soak on disk: one append-only JSON Lines file, which says what was asked and what became of each round.

The first line has the settings; `start` (the engines are ready), `round`, `hang` and `failed` follow. A soak
that goes on reads them again.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lockstep.experiments.soak.rounds import Settings

VERSION = 1
"""Of the file, and of how rounds follow from the settings."""
_HEAD = b'{"k": "settings"'
"""How every record begins."""
_ROUNDS = ("round", "hang", "failed")


class RecordError(ValueError):
    """The file cannot be gone on with, or not be read; names it, and the line."""


@dataclass
class Tally:
    """What a record says so far."""

    settings: Settings
    rounds: int = 0
    """Played, with whatever outcome."""
    hangs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    requests: int = 0
    answered_s: float = 0.0
    """Seconds of all rounds that were answered."""
    pauses: int = 0
    paused_s: float = 0.0
    starts: int = 0
    loads: list[float] = field(default_factory=list)
    """The machine's load average (1 minute) at each round's end."""
    hosts: Counter[str] = field(default_factory=Counter)
    """The machine in words -> starts on it."""

    def add(self, line: dict[str, Any]) -> None:
        kind = line["k"]
        if kind == "start":
            self.starts += 1
            self.hosts[line["host"]] += 1
        if kind not in _ROUNDS:
            return
        self.rounds += 1
        self.requests += line["requests"]
        self.pauses += line["pauses"]
        self.paused_s += line["paused_s"]
        self.loads.append(line["load"])
        if kind == "round":
            self.answered_s += line["s"]
        else:
            (self.hangs if kind == "hang" else self.failures).append(line)

    @property
    def answered(self) -> int:
        return self.rounds - len(self.hangs) - len(self.failures)


class Record:
    """An open file. One process at a time."""

    def __init__(self, path: Path, settings: Settings) -> None:
        """Makes the file, or goes on with it. Raises RecordError where it has other settings or is damaged,
        OSError where it cannot be written."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        if path.exists() and path.stat().st_size:
            self.tally = read(path)
            _check_same(path, self.tally.settings, settings)
        else:
            self.tally = Tally(settings)
            self._append({"k": "settings", "v": VERSION, **asdict(settings)})

    def add(self, kind: str, **values: Any) -> None:
        """Appends a line, which is on disk when this returns but for a crash of the machine."""
        line = {"k": kind, "t": round(time.time(), 2), **values}
        self._append(line)
        self.tally.add(line)

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read(path: Path) -> Tally:
    """What a record says. Raises RecordError, OSError."""
    tally: Tally | None = None
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            if tally is None:
                tally = Tally(_settings(line))
            else:
                tally.add(line)
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}:{number}: expected a line of a soak's record: {error!r}") from error
    if tally is None:
        raise RecordError(f"{path}:1: expected the soak's settings, the file is empty")
    return tally


def seed_of(path: Path) -> int | None:
    """The seed of a record that is there; None if there is none. Raises RecordError."""
    _drop_torn_line(path)
    return read(path).settings.seed if path.exists() and path.stat().st_size else None


def _settings(line: dict[str, Any]) -> Settings:
    if line.pop("k") != "settings" or line.pop("v") != VERSION:
        raise ValueError(f"not the settings of a soak of version {VERSION}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in line.items()}
    return Settings(**values)


def _check_same(path: Path, there: Settings, wanted: Settings) -> None:
    other = [
        f"{field.name} {getattr(there, field.name)}, not {getattr(wanted, field.name)}"
        for field in fields(Settings)
        if getattr(there, field.name) != getattr(wanted, field.name)
    ]
    if other:
        raise RecordError(
            f"{path}: this soak was begun with {'; '.join(other)}. Give the same settings to go on with it, "
            "another --name for a new one, or remove the file"
        )


def check_ours(path: Path) -> None:
    """Raises RecordError unless the file begins as a record does, OSError."""
    with path.open("rb") as file:
        head = file.read(len(_HEAD))
    if not _HEAD.startswith(head):  # it may be cut
        raise RecordError(f"{path}:1: expected the settings of a soak: lockstep did not write this file")


def _drop_torn_line(path: Path) -> None:
    """Of a soak that was killed the last line may be cut: its round is played again."""
    if not path.exists():
        return
    check_ours(path)
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
