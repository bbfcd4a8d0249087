"""Events -> what happened: which ranks of which group waited for what, and which failure came first."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import TypeVar

from lockstep.diagnose.events import Event, Mark, Status, Timeout
from lockstep.diagnose.groups_seen import Group, groups

_E = TypeVar("_E", bound=Event)
_DAY = 86_400.0
_YEAR = 365 * _DAY
_ONE_HANG = 2 * _DAY  # more than time zones (26 hours) and the watchdogs of one hang (a few hours) come to
_TELLING_EFFECTS = ("gloo closed", "store closed", "nccl remote")
_NO_HARM = ("gpu memory", "port taken", "exception", "traceback", "nccl error", "nccl peer", "sync error")
"""What a job can survive: it did if its training came to its end behind it, and nothing else ended."""
_ENDS_OTHERS = ("closing signal", "aborted")
_LOST = re.compile(r"[Cc]onnection|Broken ?[Pp]ipe|abort|DistBackendError|EOFError|closed")
"""Errors that the loss of a peer gives to the others: they explain no `Killed`."""
_ENOUGH = 8  # steps or answers after an error that tell that the job went on
_STEPS_BEHIND = 2  # the step that an error came in may still end
_SAME_MESSAGE = 100  # lines in which a failure's own reason can follow it


@dataclass
class Picture:
    """What all logs of one job tell together."""

    groups: list[Group]
    marks: list[Mark]
    ranks: dict[str, set[int]]  # per file, the global ranks that wrote in it
    statuses: list[Status]

    @cached_property
    def _by_kind(self) -> dict[str, list[Mark]]:
        found: dict[str, list[Mark]] = defaultdict(list)
        for mark in self.marks:
            found[mark.kind].append(mark)
        return found

    def of(self, *kinds: str) -> list[Mark]:
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], [])
        return [mark for mark in self.marks if mark.kind in kinds]

    def role(self, *roles: str) -> list[Mark]:
        return [mark for mark in self.marks if mark.role in roles]

    @cached_property
    def timeouts(self) -> list[Timeout]:
        return [timeout for group in self.groups for timeout in group.timeouts]

    @cached_property
    def waiting_ranks(self) -> set[tuple[str, int | None]]:
        """The global ranks that a line says to wait in something, each with the file of the line."""
        late = [s for s in self.statuses if s.seq is not None or s.enqueued > s.completed]
        return {(event.file, event.origin.rank) for event in (*self.timeouts, *late)}

    @cached_property
    def _first_lines(self) -> dict[tuple[str, int | None], Event]:
        found: dict[tuple[str, int | None], Event] = {}
        events: list[Event] = [*self.marks, *self.statuses]
        for event in events:
            key = (event.file, event.origin.rank)
            if key not in found or event.line < found[key].line:
                found[key] = event
        return found

    def first_line(self, world_rank: int | None, files: Iterable[str]) -> Event | None:
        """Return the first telling line of a rank in these files."""
        if world_rank is None:
            return None
        lines = (self._first_lines.get((file, world_rank)) for file in files)
        return next((line for line in lines if line is not None), None)

    @cached_property
    def first_timeout(self) -> Timeout | None:
        return _earliest(self.timeouts)

    @cached_property
    def waits(self) -> list[Event]:
        """All that tells that somebody waited until its patience ended."""
        return [*self.timeouts, *self.role("wait")]

    @cached_property
    def first_wait(self) -> Event | None:
        return _earliest(self.waits)

    @cached_property
    def first(self) -> Event | None:
        """The first failure that the logs tell of; None where times and lines cannot say which it was."""
        telling: list[Event] = [*self.waits, *self.role("end", "error"), *self.of(*_TELLING_EFFECTS)]
        return _earliest(telling or self.role("effect", "warning"))

    @cached_property
    def _first_waits(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for event in self.waits:
            found[event.file] = min(found.get(event.file, event.line), event.line)
        return found

    @cached_property
    def _wait_began(self) -> dict[str, float | None]:
        """Per file with a wait, the time of the first one."""
        found: dict[str, float | None] = {}
        for event in self.waits:
            if event.line == self._first_waits[event.file]:
                found[event.file] = event.origin.when
        return found

    @cached_property
    def _earliest_two(self) -> tuple[tuple[float, str] | None, float | None, int]:
        """The earliest file with a wait and its time, the time of the next; how many files have no time."""
        timed = sorted((when, file) for file, when in self._wait_began.items() if when is not None)
        untimed = len(self._wait_began) - len(timed)
        return (timed[0] if timed else None), (timed[1][0] if len(timed) > 1 else None), untimed

    def earlier(self, marks: Sequence[Mark]) -> list[Mark]:
        """Return those marks that came before anybody's patience ended; all of them if nobody's did."""
        return [mark for mark in marks if self._before_waits(mark)]

    def _before_waits(self, mark: Mark) -> bool:
        mine = self._first_waits.get(mark.file)
        if mine is not None and mark.line >= mine:
            return False
        first, second, untimed = self._earliest_two
        if untimed - (mark.file in self._wait_began and self._wait_began[mark.file] is None):
            return False
        if first is None:
            return True
        other = second if first[1] == mark.file else first[0]
        return other is None or (mark.origin.when is not None and mark.origin.when < other)

    def later(self, marks: Sequence[Mark]) -> list[Mark]:
        first = self.first_wait
        return [] if first is None else [mark for mark in marks if before(first, mark)]

    @cached_property
    def _wait_lines(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for wait in self.role("wait"):
            found[wait.file].append(wait.line)
        return {file: sorted(lines) for file, lines in found.items()}

    def beside_a_wait(self, mark: Mark) -> bool:
        """Return whether a wait is the reason that the lines behind a mark give for it."""
        lines = self._wait_lines.get(mark.file, [])
        at = bisect_left(lines, mark.line)
        return at < len(lines) and lines[at] - mark.line <= _SAME_MESSAGE

    @property
    def apart(self) -> tuple[Timeout, Timeout, int] | None:
        """Timeouts of two logs that cannot be of one hang, and how many days lie between them; None if all
        can.

        They are the last one of a log and the first one of another: a log may have those of earlier runs too.
        """
        dated: dict[str, list[tuple[float, Timeout]]] = defaultdict(list)
        for timeout in self.timeouts:
            if timeout.origin.when is not None:
                dated[timeout.file].append((timeout.origin.when, timeout))
        if not dated:
            return None
        end, last = min((max(found, key=itemgetter(0)) for found in dated.values()), key=itemgetter(0))
        begin, first = max((min(found, key=itemgetter(0)) for found in dated.values()), key=itemgetter(0))
        gap = min(begin - end, _YEAR - (begin - end))  # the year, which no log tells, may have turned
        return (last, first, int(gap / _DAY)) if gap > _ONE_HANG else None


def before(one: Event, other: Event) -> bool | None:
    """Return whether one line was written before another; None if the logs do not say."""
    if one.file == other.file:
        return one.line < other.line
    if one.origin.when is not None and other.origin.when is not None:
        return one.origin.when < other.origin.when
    return None


def picture(events: Iterable[Event]) -> Picture:
    """Put the events of all logs of one job together."""
    timeouts: list[Timeout] = []
    statuses: list[Status] = []
    marks: list[Mark] = []
    ranks: dict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.origin.rank is not None:
            ranks[event.file].add(event.origin.rank)
        if isinstance(event, Timeout):
            timeouts.append(event)
        elif isinstance(event, Status):
            statuses.append(event)
        elif isinstance(event, Mark):
            marks.append(event)
    return Picture(groups(timeouts, statuses), _telling(marks), dict(ranks), statuses)


def _telling(marks: list[Mark]) -> list[Mark]:
    """Leave out warnings and errors that were followed by success in the same file: they were no failure.

    One success is enough after a warning. After an error the others may still end the step that they are in.
    """
    succeeded: dict[str, list[int]] = defaultdict(list)
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    over: dict[str, int] = {}
    ended: dict[str, int] = {}
    for mark in marks:
        if mark.kind in ("success", "over") or (mark.kind == "progress" and mark.number):
            succeeded[mark.file] += [mark.line] * (_ENOUGH if mark.kind == "over" else 1)
        if mark.kind == "step" and mark.number is not None:
            steps[mark.file].append((mark.line, mark.number))
        if mark.kind == "over":
            over[mark.file] = max(over.get(mark.file, 0), mark.line)
        if mark.role in ("end", "effect", "wait") and mark.kind not in _NO_HARM:
            ended[mark.file] = max(ended.get(mark.file, 0), mark.line)
    for lines in succeeded.values():
        lines.sort()
    for numbered in steps.values():
        numbered.sort()

    told = {mark.file for mark in marks if mark.kind in ("hccl timeout", "hccl heartbeat")}

    def counts(mark: Mark) -> bool:
        if mark.kind == "hccl error" and "Inner Error" in mark.detail and mark.file in told:
            return False  # the code of any error, whose message is the next one
        finished = over.get(mark.file, 0) > max(mark.line, ended.get(mark.file, 0))
        if mark.kind in _NO_HARM and finished:
            return False
        if mark.kind not in ("exception", "traceback", "shm wait", "barrier wait"):
            return True
        if _survived(mark, steps.get(mark.file, []), ended.get(mark.file, 0)):
            return False
        lines = succeeded.get(mark.file, [])
        after = len(lines) - bisect_left(lines, mark.line + 1)
        return after < (1 if mark.role == "warning" else _ENOUGH)

    return _kills_explained([mark for mark in marks if counts(mark)], succeeded)


def _survived(mark: Mark, steps: list[tuple[int, int]], ended: int) -> bool:
    """Return whether numbered steps tell that the job went on behind an error and no other failure came.

    Two further numbers are at least one step that began behind it.
    """
    if mark.role != "error" or ended >= mark.line:
        return False
    at = bisect_left(steps, (mark.line, 0))
    if not at:
        return False
    further = 0
    last = steps[at - 1][1]
    for _, number in islice(steps, at, None):
        if number > last:
            last, further = number, further + 1
        if further == _STEPS_BEHIND:
            return True
    return False


def _kills_explained(marks: list[Mark], succeeded: dict[str, list[int]]) -> list[Mark]:
    """Make a bare `Killed` a consequence if the log has its reason before: a launcher that ended the others,
    or a failure that was no loss of a peer. If the job went on in between, the reason is another.
    """
    if not any(mark.kind == "killed" for mark in marks):
        return marks
    reasons: dict[str, list[int]] = defaultdict(list)
    for mark in marks:
        ended = mark.role == "end" and mark.kind not in ("killed", "host memory")
        if mark.kind in _ENDS_OTHERS or ended or (mark.kind == "exception" and not _LOST.search(mark.detail)):
            reasons[mark.file].append(mark.line)
    for lines in reasons.values():
        lines.sort()

    def explained(mark: Mark) -> bool:
        before = reasons.get(mark.file, [])
        at = bisect_left(before, mark.line)
        if mark.kind != "killed" or not at:
            return False
        steps = succeeded.get(mark.file, [])
        return bisect_left(steps, mark.line) - bisect_left(steps, before[at - 1]) < _ENOUGH

    return [replace(mark, kind="killed with the rest") if explained(mark) else mark for mark in marks]


def _earliest(events: Sequence[_E]) -> _E | None:
    """Return the event before which no other is known to have come; None if two logs each have one and no
    clock decides.
    """
    per_file: dict[str, _E] = {}
    for event in events:
        if event.file not in per_file or event.line < per_file[event.file].line:
            per_file[event.file] = event
    firsts = list(per_file.values())
    if len(firsts) > 1:
        timed = [event for event in firsts if event.origin.when is not None]
        if len(timed) < len(firsts):
            return None
        firsts = sorted(timed, key=lambda event: event.origin.when or 0.0)
        if firsts[0].origin.when == firsts[1].origin.when:
            return None
    return firsts[0] if firsts else None
