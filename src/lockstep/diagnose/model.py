"""What a diagnosis says. Plain frozen data: it goes to a terminal and to JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lockstep.diagnose.events import Event
from lockstep.remedies.model import Remedy

CauseId = str
"""A key of `lockstep.causes.CAUSES`."""


@dataclass(frozen=True)
class Evidence:
    """A statement and the line that it rests on. `file` is None for what follows from the absence of
    lines.
    """

    text: str
    file: str | None = None
    line: int | None = None
    quote: str = ""

    @classmethod
    def of(cls, text: str, event: Event) -> Evidence:
        return cls(text, event.file, event.line, event.text)


Standing = Literal["found", "possible", "ruled out"]


@dataclass(frozen=True)
class Cause:
    """One explanation and what speaks for and against it. `found`: two independent pieces for it, nothing
    decisive against.
    """

    id: CauseId
    standing: Standing
    evidence_for: tuple[Evidence, ...]
    evidence_against: tuple[Evidence, ...] = ()


RankState = Literal["waiting", "absent", "differs", "not seen"]


@dataclass(frozen=True)
class RankLine:
    """One rank of the group.

    `state`: it waits in the collective; it is `absent`, as a line proves; it issued another one (`differs`);
    or no line tells of it (`not seen`).
    """

    rank: int
    world_rank: int | None
    state: RankState
    operation: str | None = None
    elements: int | None = None
    seq: int | None = None
    enqueued: int | None = None
    completed: int | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class ReadingLine:
    """One reading of the group's numbers, as `groups.Reading` has it, sizes by name."""

    side: str
    component: str
    releases: tuple[str, ...]
    group: str
    meaning: str
    ranks: tuple[int, ...] | None
    layout: dict[str, int] | None
    score: int
    why: tuple[str, ...]
    but: tuple[str, ...]


@dataclass(frozen=True)
class GroupLine:
    """A group in which a collective timed out. `readings` has the likeliest first.

    `size` is None where no line and no reading that holds tells it. `one` is whether all its ranks are known
    to be of one group. `absent` are ranks that a line proves absent, `not_seen` those of which no line
    tells.
    """

    label: str | None
    pg_id: int | None
    pg_guid: str | None
    description: str | None
    side: str
    name: str | None
    operation: str
    elements: int | None
    seq: int | None
    timeout_ms: int
    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    ranks: tuple[RankLine, ...]
    readings: tuple[ReadingLine, ...]
    size: int | None = None
    one: bool = True
    not_seen: tuple[int, ...] = ()


@dataclass(frozen=True)
class Input:
    """One file that was read. `what` is what it was taken for."""

    path: str
    bytes: int
    lines: int
    problems: tuple[str, ...]
    what: str = "a log"


@dataclass(frozen=True)
class Diagnosis:
    """`cause` is None if the input has nothing to diagnose, `unknown` if there was a hang or a failure
    without explanation.

    `group` is the one that the cause is about, `others` are further groups that timed out. `first` is the
    first failure; `follows` says what merely followed. `open` says what would settle what is not known.
    `context` is what the job was doing, `launch` what the audit says of launch scripts among the inputs.
    """

    conclusion: str
    cause: CauseId | None
    side: str | None
    group: GroupLine | None
    causes: tuple[Cause, ...]
    first: Evidence | None
    follows: tuple[Evidence, ...]
    arithmetic: tuple[Evidence, ...]
    remedies: tuple[Remedy, ...]
    open: tuple[str, ...]
    others: tuple[GroupLine, ...]
    inputs: tuple[Input, ...]
    context: tuple[Evidence, ...] = ()
    launch: tuple[Evidence, ...] = ()
    v: int = 1
