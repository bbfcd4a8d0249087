"""What a rule looks at: the whole picture, and the group that the diagnosis is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.diagnose.events import Mark
from lockstep.diagnose.groups import RELEASES, Reading, Release
from lockstep.diagnose.model import Cause, CauseId, Evidence, Standing
from lockstep.diagnose.timeline import Group, Picture, before


@dataclass(frozen=True)
class Case:
    """`absent` are the ranks of the group, by place in it, that did not wait; `size` is None where it is not
    known.
    """

    picture: Picture
    group: Group | None
    readings: tuple[Reading, ...]
    size: int | None
    absent: tuple[int, ...]

    @property
    def reading(self) -> Reading | None:
        return self.readings[0] if self.readings else None

    @property
    def release(self) -> Release | None:
        """The vLLM release of the best reading, if it names one."""
        names = self.reading.releases if self.reading and self.reading.component == "vLLM" else ()
        return next((release for release in RELEASES if release.name in names), None)

    @property
    def step_sync(self) -> bool:
        """Whether the group's collective is the one all-reduce of every vLLM engine step."""
        reading, release = self.reading, self.release
        if not (
            self.group
            and reading
            and release
            and reading.kind == "dp"
            and reading.ranks
            and release.sync_rows
        ):
            return False
        size = release.sync_rows * len(reading.ranks)
        return all(t.op == "ALLREDUCE" and t.numel_in == size for t in self.group.at(self.group.seq))

    def earlier(self, marks: Sequence[Mark]) -> list[Mark]:
        """Those marks that came before the first timeout; all of them if nothing timed out."""
        first = self.picture.first_timeout
        if first is None:
            return list(marks) if not self.picture.groups else []
        return [mark for mark in marks if before(mark, first)]

    def later(self, marks: Sequence[Mark]) -> list[Mark]:
        first = self.picture.first_timeout
        return [] if first is None else [mark for mark in marks if before(first, mark)]


def judged(
    cause: CauseId,
    evidence: list[Evidence],
    against: list[Evidence],
    *,
    decisive: bool = False,
    needed: int = 2,
) -> Cause | None:
    """A cause with its standing: ruled out if something decisive speaks against it, found with enough
    evidence.
    """
    if not evidence:
        return None
    standing: Standing = "ruled out" if decisive else "found" if len(evidence) >= needed else "possible"
    return Cause(cause, standing, tuple(evidence), tuple(against))
