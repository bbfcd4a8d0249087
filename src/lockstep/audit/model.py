"""What an audit speaks of: values as far as a script tells them, commands, processes of the job, findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.audit.shell.text import Layout

MAX_TEXT = 65_536
"""Longest value kept, in characters: a script that doubles a variable in a loop must not exhaust memory."""


DEFAULT = "default"
"""Origin of what a script takes where the environment or its arguments give nothing."""


class AuditError(Exception):
    """A script that cannot be audited. The message names the file, the line where there is one, and what was
    expected."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a script as its author sees it, counted from 1."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a value. `origin` tells two unknown pieces of the same text apart: two calls may give two
    results."""

    text: str
    known: bool = True
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A string of which some parts are only known when the script runs."""

    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        """The string, with each unknown part as it is written in the script."""
        return "".join(part.text for part in self.parts)

    @property
    def known(self) -> bool:
        return all(part.known for part in self.parts)

    @property
    def default(self) -> bool:
        """Whether the environment or an argument may have another value than the script shows."""
        return any(part.origin == DEFAULT for part in self.parts)

    def same(self, other: Value) -> bool:
        """True where both must be equal whenever the script runs."""
        mine, theirs = (tuple((p.text, p.origin) for p in v.parts if not p.known) for v in (self, other))
        return self.text == other.text and mine == theirs

    def number(self) -> int | None:
        """The whole number this is, or None where it is unknown or none."""
        text = self.text.strip()
        if not self.known or not text.isascii() or not text.lstrip("+-").isdigit() or len(text) > 18:
            return None
        try:
            return int(text)
        except ValueError:
            return None


def literal(text: str) -> Value:
    return Value((Part(text),) if text else ())


def unknown(text: str, origin: str) -> Value:
    return Value((Part(text, known=False, origin=origin),))


def join(values: Iterable[Value]) -> Value:
    """The values one after another; cut to an unknown value where that grows beyond MAX_TEXT."""
    parts: list[Part] = []
    size = 0
    for value in values:
        for part in value.parts:
            size += len(part.text)
            if size > MAX_TEXT:
                return unknown("(too long)", "too long")
            if parts and part.known and parts[-1].known:
                parts[-1] = Part(parts[-1].text + part.text, origin=parts[-1].origin or part.origin)
            else:
                parts.append(part)
    return Value(tuple(parts))


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command; `start` and `end` are its bytes in the text that is parsed, -1 where it has none
    there."""

    value: Value
    place: Place
    start: int = -1
    end: int = -1
    quote: str = ""
    """`'` or `"` where the word is one quoted string."""

    @property
    def text(self) -> str:
        return self.value.text


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable as a command gets it. `how` is `prefix`, `export`, `option` (docker -e and the
    like)."""

    name: str
    value: Value
    place: Place
    how: str
    start: int = -1
    end: int = -1


@dataclass(slots=True)
class Command:
    """One simple command, wrappers such as nohup, srun and docker taken off."""

    words: list[Word]
    env: dict[str, Setting]
    place: Place
    start: int
    end: int
    wrapped: bool = False
    background: bool = False
    in_loop: bool = False
    machine: str = ""
    """Where it runs: empty for the script's own host, else the container, remote host or job step."""
    shell_only: dict[str, Setting] = field(default_factory=dict)
    """Shell variables that are set here and not exported: the command does not see them."""
    inside: str = ""
    """The quote around the script this stands in, where that is an argument (`bash -c '...'`)."""
    text_from: tuple[str, ...] = ()
    """Words of the wrapper: an image's name tells releases."""


@dataclass(frozen=True, slots=True)
class Option:
    """`--name value...`, dashes of the name as underscores; `end` is the byte after the last value."""

    name: str
    values: tuple[Word, ...]
    word: Word

    @property
    def end(self) -> int:
        return self.values[-1].end if self.values else self.word.end


@dataclass(slots=True)
class Process:
    """One process of the job that the scripts start, or a launcher with its ranks."""

    side: str
    """`rollout`, `trainer` or `server` (a vLLM server that takes no part in training)."""
    program: str
    command: Command
    options: dict[str, Option]
    positional: list[Word]
    launcher: dict[str, Option] | None = None
    """Options of torchrun or the like, where the script calls it itself."""
    head: Word | None = None
    """The last word of the program's name, after which options may be put."""
    hidden: tuple[str, ...] = ()
    """What may hold further options that cannot be seen from here."""
    order: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    """Releases that the job runs: some decide what a program does with its options."""

    @property
    def place(self) -> Place:
        return self.head.place if self.head else self.command.place

    @property
    def label(self) -> str:
        return f"{self.side} ({self.program}, {self.place})"

    def option(self, name: str) -> Value | None:
        """An option's value, all of its words; None where it is not given."""
        given = self.options.get(name)
        if given is None:
            return None
        if not given.values:
            return literal("true")
        return join(
            v for i, w in enumerate(given.values) for v in ((literal(" "),) if i else ()) + (w.value,)
        )

    def number(self, name: str, default: int | None) -> int | None:
        """An option as a whole number; its default where it is not given; None where that cannot be told."""
        value = self.option(name)
        if value is None:
            return None if self.hidden else default
        return value.number()

    def flag(self, name: str, default: bool | None = False) -> bool | None:
        """An option as true or false; None where that cannot be told."""
        value = self.option(name)
        if value is None:
            return None if self.hidden else default
        text = value.text.lower()
        if text in ("true", "t", "yes", "y", "1"):
            return True
        return False if text in ("false", "f", "no", "n", "0", "none") else None

    def env(self, name: str) -> Value | None:
        setting = self.command.env.get(name)
        return setting.value if setting else None

    def at(self, name: str) -> Place:
        """The line of an option or an environment variable; the program's own where neither is given."""
        if name in self.options:
            return self.options[name].word.place
        setting = self.command.env.get(name)
        return setting.place if setting else self.place


class Severity(Enum):
    """What a finding means for a run of the job."""

    HAZARD = "hazard"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact can be read: a file of a release."""

    release: str
    file: str

    def __str__(self) -> str:
        return f"{self.file} ({self.release})"


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    severity: Severity
    place: Place
    title: str
    reason: str
    sources: tuple[Source, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause or a readiness check between commands; `order` places it among the processes."""

    kind: str
    """`sleep`, `check` or `foreign` (another way of waiting)."""
    command: Command
    order: int
    seconds: int | None = None


@dataclass(slots=True)
class Job:
    """All that the scripts start, in the order in which they do."""

    processes: list[Process] = field(default_factory=list)
    unread: list[Process] = field(default_factory=list)
    """Programs that may be part of the job and that this audit does not know."""
    waits: list[Wait] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[Finding] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    """Every simple command, known or not."""
    layouts: dict[str, Layout] = field(default_factory=dict)
    """Each script as it was parsed, by path."""

    def side(self, name: str) -> list[Process]:
        return [process for process in self.processes if process.side == name]
