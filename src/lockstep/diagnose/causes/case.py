"""What a rule looks at: the whole picture, and the group that the diagnosis is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.diagnose.events import Mark
from lockstep.diagnose.groups import RELEASES, Reading, Release
from lockstep.diagnose.groups_seen import Group
from lockstep.diagnose.model import Cause, CauseId, Evidence, Standing
from lockstep.diagnose.timeline import Picture


@dataclass(frozen=True)
class Case:
    """The picture, and the group in question. All ranks are places in the group.

    `size` is None where no line and no reading that holds tells it. `absent` are the ranks that a line proves
    absent, `not_seen` those of a known size of which no line tells. No conclusion is drawn from the latter.
    """

    picture: Picture
    group: Group | None
    readings: tuple[Reading, ...]
    size: int | None
    absent: tuple[int, ...]
    not_seen: tuple[int, ...] = ()

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
        return all(t.op == "ALLREDUCE" and t.numel_in == size for t in self.group.works)

    def earlier(self, marks: Sequence[Mark]) -> list[Mark]:
        """Return those marks that came before anybody's patience ended; all of them if nobody's did."""
        return self.picture.earlier(marks)

    def later(self, marks: Sequence[Mark]) -> list[Mark]:
        return self.picture.later(marks)

    @property
    def two_sides(self) -> bool:
        """Whether the input shows both a trainer and a rollout."""
        trains = any(mark.detail for mark in self.picture.of("progress")) or self.picture.of("over")
        serves = self.picture.of("vllm", "server", "coordinator", "engine config") or self.step_sync
        return bool(trains and serves)


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
