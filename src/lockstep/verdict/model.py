"""What a verdict says. Plain frozen data: it goes to a terminal, to JSON, to a test report."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from lockstep.record import Problem


class Kind(str, Enum):
    IN_STEP = "in step"
    DIVERGED = "diverged"
    STUCK = "stuck"
    STALLED = "stalled"
    INCOMPLETE = "incomplete"


RankState = Literal["waiting", "absent", "differs", "done", "missing"]


@dataclass(frozen=True)
class RankView:
    """One rank of the group that the verdict is about.

    `state`: it waits in the collective, has not issued it, issued another one than its peers, has issued it
    (and moved on), or has no ledger. `operation` is what it issued as number `Verdict.seq`, or waits in;
    where ranks went different ways, the boundary that it passed.
    `where` is the innermost frame of its main thread outside the standard library, `path:line function`.
    """

    rank: int
    process: str
    state: RankState
    pid: int | None = None
    host: str | None = None
    issued: int | None = None
    completed: int | None = None
    operation: str | None = None
    issued_at: str | None = None
    where: str | None = None
    park: str | None = None
    silent_s: float | None = None  # seconds since the last line, if that is too long ago for a living process
    ended: bool = False
    waits_elsewhere: str | None = None  # what it waits for instead of `operation`
    blocked: str | None = (
        None  # what it waits for that is no rank: a lock, queue, pipe, socket, process, future
    )


@dataclass(frozen=True)
class GroupView:
    """`ranks` are the first of a very large group; `left_out` is how many more it has."""

    name: str
    ranks: tuple[int, ...]
    lib: str
    backend: str
    left_out: int = 0


@dataclass(frozen=True)
class BoundaryView:
    name: str
    n: int
    step: int | None

    def __str__(self) -> str:
        return f"{self.name} {self.n}"


@dataclass(frozen=True)
class Verdict:
    """`seq` is the sequence number (from 1) of the first collective of `group` at which its ranks part. Ranks
    may have gone on from there before they hung: then `waiting` are those that wait in any collective of the
    group, and `absent` those that have not issued number `seq`.

    `boundary` is the first one at which they differ; while they hang, the last one that all of them have
    passed. `passed` holds, per side and role, how many boundaries of each name all its processes have passed.
    Times are seconds on the processes' clocks; `still_s` is how long nothing has been seen to move. `running`
    says that more may come: the job was looked at while it ran, and had neither passed `train end` nor lost a
    trainer.
    """

    kind: Kind
    sentence: str
    group: GroupView | None = None
    side: str | None = None  # trainer, rollout, or both
    seq: int | None = None
    ranks: tuple[RankView, ...] = ()
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()  # the ranks that differ from a majority
    boundary: BoundaryView | None = None
    agreed: BoundaryView | None = None  # the last boundary at which all ranks of the group were the same
    passed: dict[str, dict[str, int]] = field(default_factory=dict)
    last_progress: float | None = None
    still_s: float = 0.0
    consequences: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    running: bool = False
    lost: str = ""  # the process that was gone first, if that is why the job did not end
    cause: str = ""  # as docs/causes.md names it; empty where there is nothing to explain
    evidence: tuple[str, ...] = ()
    left_out: int = 0  # ranks without a ledger that are not in `ranks`
    clocks: tuple[str, ...] = ()  # what is wrong with the processes' clocks, a sentence each
