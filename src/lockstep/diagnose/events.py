"""What is read out of a log: one small record per line that says something about a hang."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.diagnose.kinds import KINDS

NO_NUMBER = -1
"""The sequence number of a timeout whose torch prints none (1.x)."""


@dataclass(frozen=True)
class Origin:
    """Who wrote a line, as far as its prefix tells. `rank` is the global rank in its own job half.

    `when` is seconds since the start of the year by the clock of whoever wrote the line, without time zone;
    only differences of a few hours mean something.
    """

    rank: int | None = None
    process: str | None = None
    pid: int | None = None
    host: str | None = None
    when: float | None = None


@dataclass(frozen=True)
class GroupLabel:
    """A process group as ProcessGroupNCCL prints it.

    `local` counts the NCCL groups that this process made, from 0; `guid` is torch's name of the group, a
    global counter unless somebody chose otherwise; `number` is the bare number of torch 2.2 to 2.4, which
    may be either.
    """

    local: int | None = None
    guid: str | None = None
    number: int | None = None
    desc: str | None = None
    rank: int | None = None  # within the group

    @property
    def key(self) -> tuple[int | None, str | None, int | None]:
        return (self.local, self.guid, self.number)

    def __str__(self) -> str:
        numbers = f"PG ID {self.local} PG GUID {self.guid}"
        text = numbers if self.number is None else f"PG {self.number}"
        return f"{text} ({self.desc})" if self.desc else text


@dataclass(frozen=True)
class Event:
    """`text` is the line as quoted to people: prefixes of collectors gone, at most 400 characters."""

    file: str
    line: int
    text: str
    origin: Origin


@dataclass(frozen=True)
class Timeout(Event):
    """A watchdog saw a collective run out of time. Sizes are element counts, None where torch 2.0 left them
    out.
    """

    seq: int
    op: str
    numel_in: int | None
    numel_out: int | None
    timeout_ms: int
    ran_ms: int | None
    rank: int | None  # within the group
    group: GroupLabel | None
    repeated: int = 0  # further ranks whose equal line Ray left out


@dataclass(frozen=True)
class Status(Event):
    """What a rank had last enqueued and completed in a group; -1 for nothing. `seq` is the failed one, if
    named.
    """

    group: GroupLabel
    seq: int | None
    enqueued: int
    completed: int


@dataclass(frozen=True)
class Mark(Event):
    """Any other telling line. `kind` is a key of `kinds.KINDS`, `detail` its telling part.

    `number` and `total` are its numbers (exit code, step, who came and who was expected), `peer` the other
    end that it names, `ranks` the ranks that it is about if these are not the writer.
    """

    kind: str
    detail: str = ""
    number: int | None = None
    total: int | None = None
    group: GroupLabel | None = None
    peer: str | None = None
    ranks: tuple[int, ...] = ()

    @property
    def role(self) -> str:
        return KINDS[self.kind].role

    @property
    def failure(self) -> bool:
        return self.role != "context"
