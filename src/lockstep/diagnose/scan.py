"""Log bytes -> events, in one pass and in bounded memory.

A line is looked at closely only if it holds one of a few byte strings; searching for these is what a healthy
gigabyte costs. What the job was doing is read from three windows alone: the file's first part, and what
surrounds the first failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from lockstep.diagnose import line_patterns as marks
from lockstep.diagnose import nccl
from lockstep.diagnose.events import Event, Mark, Status, Timeout
from lockstep.diagnose.log_prefixes import MAX_LINE, decode, strip

# Long strings are faster to search for than short ones. Each must be in at least one line of whatever is to
# be found.
LITERALS = (
    b"ProcessGroup",
    b"WorkNCCL(",
    b"gloo/transport/tcp",
    b"torch.distributed.Dist",
    b"client socket has timed out",
    b"EngineCore encountered",
    b"died unexpectedly",
    b"shared memory broadcast block",
    b"exitcode",
    b"exits with return code",
    b"ut of memory",
    b"slurmstepd: error",
    b"requests.exceptions",
    b"Multiple errors",
    b"NCCL error",
    b"Detected mismatch between collectives",
)
_CHUNK = 1 << 20
_WINDOW = 1 << 18  # bytes of context read at the start, before and after the first failure
_LOOKAHEAD = 4  # physical lines that a wrapped message may go on for
_HITS_PER_LITERAL = 20_000  # in one file; then it is noise
_EVENTS_PER_KIND = 5_000
_CONTEXT_PER_KIND = 200
_WATCHDOG = ("ProcessGroup", "WorkNCCL(", "atchdog", "NCCL work", "PG status")


@dataclass
class Scan:
    """What one file gave. `problems` are sentences about what was left out."""

    file: str
    events: list[Event] = field(default_factory=list)
    lines: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


def scan(stream: BinaryIO, file: str) -> Scan:
    """Reads a stream to its end. Raises what the stream raises."""
    return _Scanner(Scan(file)).run(stream)


class _Scanner:
    def __init__(self, result: Scan) -> None:
        self._result = result
        self._literals = list(LITERALS)
        self._hits: Counter[bytes] = Counter()
        self._kept: Counter[str] = Counter()
        self._seen: set[tuple[object, ...]] = set()
        self._last = b""  # the block before, for the context of the first failure
        self._after = 0  # bytes of context still to read behind the first failure
        self._failed = False

    def run(self, stream: BinaryIO) -> Scan:
        rest = b""
        while chunk := _read(stream):
            self._result.bytes += len(chunk)
            buffer = rest + chunk if rest else chunk
            cut = _cut(buffer)
            self._block(buffer, cut)
            rest = buffer[cut:]
        self._block(rest, len(rest))
        self._result.lines += bool(rest) and not rest.endswith(b"\n")
        return self._result

    def _block(self, buffer: bytes, cut: int) -> None:
        """Looks at buffer[:cut], which ends at the end of a line; what is behind it serves to complete
        wrapped lines.
        """
        first = self._result.lines + 1
        if not self._result.lines:
            self._context(buffer[: min(cut, _WINDOW)], first)
        elif self._after > 0:
            self._context(buffer[: min(cut, self._after)], first)
            self._after -= cut
        starts = self._line_starts(buffer, cut)
        lines, at = first, 0
        covered = -1
        for start in starts:
            lines += buffer.count(b"\n", at, start)
            at = start
            if start <= covered:
                continue
            found, covered = self._line(buffer, start, lines)
            if found and not self._failed:
                self._failed = True
                self._around_first_failure(buffer, cut, start, lines)
        self._result.lines += buffer.count(b"\n", 0, cut)
        self._last = (self._last + buffer[max(0, cut - _WINDOW) : cut])[-_WINDOW:]

    def _line_starts(self, buffer: bytes, cut: int) -> list[int]:
        """Where to read from: the line's start, or the last carriage return before the hit (progress bars
        never end).
        """
        starts: set[int] = set()
        for literal in list(self._literals):
            at = buffer.find(literal, 0, cut)
            while at >= 0:
                start = max(buffer.rfind(b"\n", 0, at), buffer.rfind(b"\r", 0, at)) + 1
                starts.add(max(start, at - MAX_LINE // 2))
                self._hits[literal] += 1
                if self._hits[literal] >= _HITS_PER_LITERAL:
                    self._literals.remove(literal)
                    self._result.problems.append(
                        f"{_HITS_PER_LITERAL} lines have {literal.decode()!r}: later ones were not read"
                    )
                    break
                at = buffer.find(literal, min(_end(buffer, at), at + MAX_LINE // 2), cut)
        return sorted(starts)

    def _line(self, buffer: bytes, start: int, number: int) -> tuple[bool, int]:
        """Reads a line, joined with its neighbours if it was wrapped. Whether it tells of a failure, and
        where it ends.
        """
        end = _end(buffer, start)
        found = False
        for segment in decode(buffer[start:end]):
            text, collector = strip(segment)
            events = list(self._parse(text, number, collector))
            if nccl.headless(events):
                events = self._parsed_watchdog(_before(buffer, start) + text, number, collector) or events
            elif not events and nccl.unfinished(text):
                joined, upto = self._joined(buffer, end, number, collector, text)
                if joined:
                    events, end = joined, upto
            for event in events:
                found |= self._keep(event)
        return found, end - 1

    def _joined(
        self, buffer: bytes, end: int, number: int, collector: float | None, text: str
    ) -> tuple[list[Event], int]:
        """The events of a wrapped line. A terminal wraps in the middle of a word, a mail between words: both
        are tried.
        """
        parts: list[str] = []
        while len(parts) < _LOOKAHEAD and end < len(buffer):
            after = _end(buffer, end)
            parts.append(strip(decode(buffer[end:after])[0])[0])
            end = after
            for glue in ("", " "):
                alone = self._parsed_watchdog(glue.join(parts), number, collector)
                if alone and not nccl.headless(alone):
                    return [], end  # the next line is a message of its own
                if events := self._parsed_watchdog(glue.join([text, *parts]), number, collector):
                    return events, end
        return [], end

    def _parsed_watchdog(self, text: str, number: int, collector: float | None) -> list[Event]:
        return list(nccl.parse(text, self._result.file, number, collector))

    def _parse(self, text: str, number: int, collector: float | None) -> Iterator[Event]:
        file = self._result.file
        if any(word in text for word in _WATCHDOG):
            yield from nccl.parse(text, file, number, collector)
        yield from marks.failures(text, file, number, collector)

    def _keep(self, event: Event) -> bool:
        """Adds an event unless it is one that the log repeats. True if it tells of a failure."""
        if isinstance(event, Timeout):
            same: tuple[object, ...] = (
                "t",
                event.origin.rank,
                event.origin.pid,
                event.rank,
                event.seq,
                event.op,
                event.ran_ms,
            )
            name = "timeout"
        elif isinstance(event, Status):
            same = (
                "s",
                event.origin.rank,
                event.origin.pid,
                event.group,
                event.seq,
                event.enqueued,
                event.completed,
            )
            name = "status"
        elif isinstance(event, Mark):
            same = ("m", event.line, event.kind, event.detail)
            name = event.kind
        else:
            return False
        if same in self._seen:
            return not isinstance(event, Mark) or event.failure
        limit = _CONTEXT_PER_KIND if isinstance(event, Mark) and not event.failure else _EVENTS_PER_KIND
        if self._kept[name] == limit:
            self._result.problems.append(
                f"more than {limit} lines of kind '{name}': the first {limit} were used"
            )
        self._kept[name] += 1
        if self._kept[name] <= limit:
            self._seen.add(same)
            self._result.events.append(event)
        return not isinstance(event, Mark) or event.failure

    def _around_first_failure(self, buffer: bytes, cut: int, start: int, number: int) -> None:
        before = buffer[max(0, start - _WINDOW) : start]
        if len(before) < _WINDOW:
            before = self._last[len(before) - _WINDOW :] + before
        self._context(before, number - before.count(b"\n"))
        self._context(buffer[start : min(cut, start + _WINDOW)], number)
        self._after = _WINDOW - (cut - start)

    def _context(self, window: bytes, first: int) -> None:
        """Reads what a window says about what the job was doing; of progress bars only the last ones
        matter.
        """
        newest: list[Mark] = []
        number = first
        at = 0
        while at < len(window):
            end = _end(window, at)
            raw = window[at:end]
            at = end
            if len(raw) > 8:
                for segment in decode(raw[-MAX_LINE:]):
                    text, collector = strip(segment)
                    newest.extend(marks.context(text, self._result.file, number, collector))
            number += 1
        kept = newest[-_CONTEXT_PER_KIND:] + [
            mark for mark in newest[:-_CONTEXT_PER_KIND] if mark.kind != "progress"
        ]
        for mark in kept:
            self._kept[mark.kind] = min(self._kept[mark.kind], _CONTEXT_PER_KIND - 1)
            self._keep(mark)


def _read(stream: BinaryIO) -> bytes:
    """The next chunk, full unless the stream ends: pipes and decompressors may give less."""
    parts: list[bytes] = []
    missing = _CHUNK
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _end(buffer: bytes, start: int) -> int:
    end = buffer.find(b"\n", start)
    return len(buffer) if end < 0 else end + 1


def _before(buffer: bytes, start: int) -> str:
    """The physical line before a position, as far as the buffer has it."""
    if start < 2:
        return ""
    before = buffer.rfind(b"\n", 0, start - 1) + 1
    return strip(decode(buffer[before : start - 1])[-1])[0].rstrip() + " "


def _cut(buffer: bytes) -> int:
    """Where to stop so that the lines behind can complete a wrapped one. A line of over a chunk is cut where
    it can be.
    """
    at = len(buffer)
    for _ in range(_LOOKAHEAD + 1):
        at = buffer.rfind(b"\n", 0, at)
        if at < 0:
            break
    if at >= 0 or len(buffer) < 2 * _CHUNK:
        return at + 1
    return max(buffer.rfind(b"\n"), buffer.rfind(b"\r")) + 1 or len(buffer)
