"""Log bytes -> events, in one pass and in bounded memory.

A line is looked at closely only if it holds one of a few byte strings. What the job was doing is read from
four windows alone: the file's first and last part, and what surrounds the first failure and the first
timeout.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lockstep.diagnose import line_patterns as marks
from lockstep.diagnose import nccl, wrapped
from lockstep.diagnose.events import Event, Mark, Status, Timeout
from lockstep.diagnose.kinds import KINDS
from lockstep.diagnose.log_prefixes import MAX_LINE, bare, begins, decode, moment, strip

_CHUNK = 1 << 20
_WINDOW = 1 << 18  # bytes of context read at the start, at the end, before and after a failure
_LOOKS, _LOOKS_PER_MB = 6_000, 10_000
"""Lines with a telling byte string that are looked at closely: so many of a file, and so many for each MB,
one for each 105 bytes. Only what is no log has more.
"""
_JOINS, _JOINS_PER_MB = 1_000, 1_000
"""Lines that are put together with their neighbours, counted alike. It costs ten times a look."""
_EVENTS_PER_KIND = 5_000
_PER_RANK = 20_000  # timeouts, status lines: of each rank a few
_CONTEXT_PER_KIND = 200
_CONTEXT_LINES = 4_000  # in one window
_TRACEBACK = 200  # lines in which the end of a traceback is looked for
_SEPARATORS = re.compile(rb"[\r\n]")
_MORE_DIGITS = re.compile(r"\d{1,18}\.?$")


@dataclass
class Scan:
    """What one file gave. `problems` are sentences about what was left out; `begin` and `end` the first and
    the last time that its first and last part name, in seconds since the start of the year.
    """

    file: str
    events: list[Event] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    begin: float | None = None
    end: float | None = None
    head: bytearray = field(default_factory=bytearray)


class Readable(Protocol):
    """Anything that gives bytes, and none at its end."""

    def read(self, size: int, /) -> bytes: ...


def scan(stream: Readable, file: str) -> Scan:
    """Read a stream to its end. Raises what the stream raises."""
    return _Scanner(Scan(file)).run(stream)


class _Scanner:
    def __init__(self, result: Scan) -> None:
        self._result = result
        self._looks = _LOOKS
        self._joins = _JOINS
        self._alone = 0  # lines that were not put together with their neighbours for want of joins
        self._left_out = 0  # lines that were not looked at closely for want of looks
        self._kept: Counter[str] = Counter()
        self._seen: set[tuple[object, ...]] = set()
        self._lead = b""  # the lines before the block, for messages that begin there
        self._last = b""  # the block before, for the context of a failure
        self._after = 0  # bytes of context still to read behind a failure
        self._failed: set[str] = set()
        self._begun_reading = False

    def run(self, stream: Readable) -> Scan:
        rest = b""
        while chunk := _read(stream):
            if not self._result.bytes:
                self._result.head += chunk[: 1 << 16]
            self._result.bytes += len(chunk)
            self._looks += _LOOKS_PER_MB * len(chunk) // _CHUNK
            self._joins += _JOINS_PER_MB * len(chunk) // _CHUNK
            buffer = rest + chunk if rest else chunk
            cut = _cut(buffer)
            self._block(buffer, cut)
            rest = buffer[cut:]
        self._block(rest, len(rest))
        self._result.lines += bool(rest) and not rest.endswith(b"\n")
        self._tail()
        if self._left_out:
            self._result.problems.append(
                f"{self._left_out} of its many short lines were not read: no log has so many per megabyte"
            )
        if self._alone:
            self._result.problems.append(
                f"{self._alone} lines were read without their neighbours: messages broken there are not known"
            )
        for kind, count in self._kept.items():
            limit = _limit(kind)
            if count > limit and limit != _CONTEXT_PER_KIND:
                self._result.problems.append(f"{count} lines of kind '{kind}': the first {limit} were used")
        return self._result

    def _block(self, buffer: bytes, cut: int) -> None:
        """Look at buffer[:cut], which ends at the end of a line. What is behind it completes broken lines."""
        first = self._result.lines + 1
        if cut and not self._begun_reading:
            self._begun_reading = True
            self._context(buffer[: min(cut, _WINDOW)], first)
        elif self._after > 0:
            self._context(buffer[: min(cut, self._after)], first)
            self._after -= cut
        lines, at, covered = first, 0, 0
        for hit in self._hits(buffer, cut):
            if hit < covered:
                continue
            start = _start(buffer, hit, covered)
            lines += buffer.count(b"\n", at, start)
            at = start
            if self._looks <= 0:
                self._left_out += 1
                continue
            covered, tells = self._line(buffer, start, lines)
            for kind in tells - self._failed:
                self._failed.add(kind)
                self._around(buffer, cut, start, lines)
        self._result.lines += buffer.count(b"\n", 0, cut)
        self._last = (self._last + buffer[max(0, cut - _WINDOW) : cut])[-_WINDOW:]
        self._lead = buffer[max(0, cut - MAX_LINE) : cut]

    def _hits(self, buffer: bytes, cut: int) -> list[int]:
        """Return where the triggers are, in order: of each the first in a line, or in every `MAX_LINE` of
        one.
        """
        found: list[int] = []
        for trigger in marks.TRIGGERS:
            at = buffer.find(trigger, 0, cut)
            while at >= 0:
                found.append(at)
                end = buffer.find(b"\n", at, min(cut, at + MAX_LINE // 2))
                end = min(cut, at + MAX_LINE // 2) if end < 0 else end
                back = buffer.find(b"\r", at, end)
                at = buffer.find(trigger, end if back < 0 else back, cut)
        found.sort()
        return found

    def _line(self, buffer: bytes, start: int, number: int) -> tuple[int, set[str]]:
        """Read a line, joined with its neighbours if it was broken.

        Return where it ends, and of what it tells: of a `failure`, of a `timeout`.
        """
        end = _end(buffer, start)
        text, collector = strip(decode(buffer[start:end]))
        self._looks -= 1

        def parse(joined: str) -> Iterator[tuple[int, int, Event]]:
            watchdog = list(nccl.parse(joined, self._result.file, number, collector))
            if watchdog:
                yield from watchdog
            else:
                yield from marks.failures(joined, self._result.file, number, collector)

        alone = list(parse(text))
        events = [event for _, _, event in alone]
        self._alone += self._joins <= 0
        behind, ends = _behind(buffer, end) if len(text) > 8 and self._joins > 0 else ([], [])
        before, numbers = self._begun(buffer, start, number, text, events)
        if before or behind:
            self._joins -= 1
            places = [*numbers, number, *([number] * len(behind))]
            pieces = [*before, text, *behind]
            joined = [
                replace(event, line=places[piece])
                for piece, event in wrapped.rejoined(pieces, len(before), parse)
            ]
            events, whole = _better(events, joined)
            if whole and behind and not _cut_short(alone, text, behind):
                end = ends[-1]
        if _cut_short(alone, text, behind):
            events = [event for _, _, event in parse(text + behind[0].strip())]
        if "Traceback (most recent call" in text:
            events += self._end_of_traceback(buffer, end, number, text)
        tells: set[str] = set()
        for event in events:
            tells |= self._keep(event)
        return end, tells

    def _begun(
        self, buffer: bytes, start: int, number: int, text: str, events: Sequence[Event]
    ) -> tuple[list[str], list[int]]:
        """Return the lines, and their numbers, with which the message of a line may have begun.

        A message that names its writer has begun with it. Of others only the watchdog's are known to have a
        rank in front.
        """
        complete = not _weak(events) and not any(map(nccl.headless, events))
        nameless = any(isinstance(event, Mark) and event.origin.rank is None for event in events)
        if len(text) <= 8 or self._joins <= 0 or begins(text) or (complete and not nameless):
            return [], []
        before, numbers = _before(self._lead, buffer, start, number)
        if complete and not any("ProcessGroup" in part for part in before):
            return [], []
        return before, numbers

    def _end_of_traceback(self, buffer: bytes, at: int, number: int, first: str) -> list[Event]:
        """Return the line that ends a traceback, if no row of the table knows it, as an event."""
        self._looks -= 1
        tag = _rank_tag(first)
        margin = _margin(first)
        for _ in range(_TRACEBACK):
            if at >= len(buffer):
                break
            number += buffer.count(b"\n", at - 1, at) if at else 0
            end = _end(buffer, at)
            text, collector = strip(decode(buffer[at:end]))
            at = end
            if _rank_tag(text) != tag:
                continue
            rest = text[_margin(text) :]
            if not rest.strip() or rest.startswith((" ", "File ")) or _margin(text) > margin + 8:
                continue
            known = [mark for _, _, mark in marks.failures(text, self._result.file, number, collector)]
            if known:  # a line with a trigger is read for itself
                return [] if any(trigger in text.encode() for trigger in marks.TRIGGERS) else [*known]
            found = marks.exception(text, self._result.file, number, collector, any_name=True)
            return [found[2]] if found else []
        return []

    def _keep(self, event: Event) -> set[str]:
        """Add an event unless it is one that the log repeats. Return of what it tells."""
        if isinstance(event, Timeout):
            same: tuple[object, ...] = ("t", *_who(event), event.rank, event.seq, event.op, event.ran_ms)
            kind, tells = "timeout", {"failure", "timeout"}
        elif isinstance(event, Status):
            numbers: tuple[int, ...] = (
                () if event.seq is None else (event.seq, event.enqueued, event.completed)
            )
            same = ("s", *_who(event), event.group, *numbers)
            kind, tells = "status", {"failure"}
        elif isinstance(event, Mark):
            same = ("m", event.line, event.kind, event.detail)
            if event.kind == "dump signal" and event.origin.rank is not None:
                same = ("d", *_who(event), event.group, "this local rank" in event.detail)
            kind, tells = event.kind, {"failure"} if event.failure else set()
        else:
            return set()
        if same in self._seen:
            return tells
        self._kept[kind] += 1
        if self._kept[kind] <= _limit(kind):
            self._seen.add(same)
            self._result.events.append(event)
        return tells

    def _around(self, buffer: bytes, cut: int, start: int, number: int) -> None:
        before = buffer[max(0, start - _WINDOW) : start]
        if len(before) < _WINDOW:
            before = self._last[len(before) - _WINDOW :] + before
        self._context(before, number - before.count(b"\n"))
        self._context(buffer[start : min(cut, start + _WINDOW)], number)
        self._after = _WINDOW - (cut - start)

    def _tail(self) -> None:
        lines = self._last.count(b"\n") + (not self._last.endswith(b"\n"))
        self._context(self._last, self._result.lines - lines + 1)

    def _context(self, window: bytes, first: int) -> None:
        """Read what a window says about what the job was doing. Of progress bars the last ones matter."""
        newest: list[Mark] = []
        number, at = first, 0
        for _ in range(_CONTEXT_LINES):
            if at >= len(window):
                break
            end = _end(window, at)
            if end - at > 8:
                text, collector = strip(decode(window[max(at, end - MAX_LINE) : end]))
                newest.extend(marks.context(text, self._result.file, number, collector))
                when = moment(text[:400])
                when = collector if when is None else when
                if when is not None:
                    self._result.begin = min(when, self._result.begin or when)
                    self._result.end = max(when, self._result.end or when)
            number += window.count(b"\n", at, end)
            at = end
        for mark in _newest(newest):
            self._kept[mark.kind] = min(self._kept[mark.kind], _CONTEXT_PER_KIND - 1)
            self._keep(mark)


def _newest(found: list[Mark]) -> list[Mark]:
    """Return the last marks of each kind, in order."""
    count: Counter[str] = Counter()
    kept: list[Mark] = []
    for mark in reversed(found):
        count[mark.kind] += 1
        if count[mark.kind] <= _CONTEXT_PER_KIND:
            kept.append(mark)
    return kept[::-1]


def _weak(events: Sequence[Event]) -> bool:
    """Return whether events are none, or errors that nothing is known of."""
    return all(isinstance(event, Mark) and event.kind == "exception" for event in events)


def _better(alone: list[Event], joined: list[Event]) -> tuple[list[Event], bool]:
    """Return what a line tells, alone or with its neighbours, and whether the neighbours count."""
    if _weak(joined):
        return alone, False
    kinds = {_kind(event) for event in alone}
    if _weak(alone) or (any(map(nccl.headless, alone)) and not all(map(nccl.headless, joined))):
        return joined, True
    named = [event for event in joined if event.origin.rank is not None]
    if all(event.origin.rank is None for event in alone) and {_kind(event) for event in named} >= kinds:
        return named, True
    new = [event for event in joined if _kind(event) not in kinds]
    return [*new, *alone], bool(new)


def _cut_short(alone: Sequence[tuple[int, int, Event]], text: str, behind: Sequence[str]) -> bool:
    """Return whether a line ends within a number that goes on in the next one."""
    return bool(
        alone
        and behind
        and text[-1:].isdigit()
        and max(stop for _, stop, _ in alone) == len(text)
        and _MORE_DIGITS.match(behind[0].strip())
    )


def _limit(kind: str) -> int:
    context = kind not in ("timeout", "status") and KINDS[kind].role == "context"
    if kind in ("timeout", "status", "init complete"):
        return _PER_RANK
    return _CONTEXT_PER_KIND if context else _EVENTS_PER_KIND


def _who(event: Event) -> tuple[object, ...]:
    return event.origin.rank, event.origin.pid


def _kind(event: Event) -> str:
    return event.kind if isinstance(event, Mark) else type(event).__name__


def _rank_tag(text: str) -> str:
    at = text.find("[rank")
    return text[at : text.find("]", at)] if at >= 0 else ""


def _margin(text: str) -> int:
    """Return where a traceback's line begins behind its prefix: its own indentation is kept."""
    return len(text[: bare(text)].rstrip(" ")) + (1 if text[: bare(text)].strip() else 0)


def _read(stream: Readable) -> bytes:
    """Return the next chunk, full unless the stream ends: pipes and decompressors may give less."""
    parts: list[bytes] = []
    missing = _CHUNK
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _start(buffer: bytes, hit: int, covered: int) -> int:
    """Return where the line of a hit begins, behind what was read already and at most half of `MAX_LINE`
    before.

    A carriage return ends a line, too: progress bars never have another end.
    """
    low = max(covered, hit - MAX_LINE // 2)
    low = max(low, buffer.rfind(b"\n", low, hit) + 1)
    return max(low, buffer.rfind(b"\r", low, hit) + 1)


def _end(buffer: bytes, start: int) -> int:
    """Return where the line that begins at `start` ends, its separator included."""
    found = _SEPARATORS.search(buffer, start, start + MAX_LINE)
    if found is None:
        return min(len(buffer), start + MAX_LINE)
    return found.end() + (buffer[found.start() : found.end() + 1] == b"\r\n")


def _behind(buffer: bytes, at: int) -> tuple[list[str], list[int]]:
    """Return the lines with which a message may go on, and where each ends."""
    parts: list[str] = []
    ends: list[int] = []
    while len(parts) < wrapped.BEHIND and at < len(buffer):
        if buffer.startswith(b"[rank", at):  # as nearly all lines begin where many ranks fail
            break
        end = _end(buffer, at)
        text = strip(decode(buffer[at:end]))[0]
        at = end
        if not text.strip() or begins(text):
            break
        parts.append(text)
        ends.append(at)
    return parts, ends


def _before(lead: bytes, buffer: bytes, start: int, number: int) -> tuple[list[str], list[int]]:
    """Return the lines, and their numbers, in which a message may have begun."""
    if start < MAX_LINE // 2 and lead:
        buffer, start = lead + buffer[:start], len(lead) + start
    parts: list[str] = []
    numbers: list[int] = []
    at = start
    while len(parts) < wrapped.BEFORE and at > 0:
        stop = at - 1 - (buffer[at - 2 : at] == b"\r\n")
        low = max(0, stop - MAX_LINE // 2)
        begin = max(buffer.rfind(b"\n", low, stop), buffer.rfind(b"\r", low, stop)) + 1
        number -= buffer[stop:at].count(b"\n")
        text = strip(decode(buffer[begin:stop]))[0]
        if not text.strip():
            break
        parts.insert(0, text)
        numbers.insert(0, number)
        if begins(text):
            break
        at = begin
    return parts, numbers


def _cut(buffer: bytes) -> int:
    """Return where to stop so that the lines behind can complete a broken one. A line of over a chunk is cut
    where it can be.
    """
    at = len(buffer)
    for _ in range(wrapped.BEHIND + 1):
        at = buffer.rfind(b"\n", 0, at)
        if at < 0:
            break
    if at >= 0 or len(buffer) < 2 * _CHUNK:
        return at + 1
    return max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1 or len(buffer)
