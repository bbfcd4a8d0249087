"""Lines of torch's NCCL watchdog, torch 2.0 and later, as events.

Formats are those of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp. What changed over the releases: 2.0
prints no sizes; 2.1 adds NumelIn and NumelOut; 2.2 puts `[rankN]:` in front; 2.3 adds `[PG n Rank r]`; 2.4
the group's description and "last enqueued NCCL work"; 2.5 `PG ID` and `PG GUID`; 2.6 "failure detected by
watchdog at work sequence id" and "PG status: last enqueued work".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from lockstep.diagnose.events import NO_NUMBER, Event, GroupLabel, Mark, Status, Timeout
from lockstep.diagnose.log_prefixes import origin, quote

_TIMEOUT = re.compile(
    r"(Watchdog caught collective operation timeout:\s{0,4})?"
    r"WorkNCCL\((?:SeqNum=(\d{1,18}), ?)?OpType=(\w{1,40})(?:, ?TensorShape=\[[^\]]{0,200}\])?"
    r"(?:, ?NumelIn=(\d{1,18}), ?NumelOut=(\d{1,18}))?, ?Timeout\(ms\)=(\d{1,12})\)"
    r"(?:\s{1,4}ran for (\d{1,18}) milliseconds|\s{1,4}(timed out in blocking wait))?"
)
_LABEL = re.compile(
    r"\[PG (?:ID (\d{1,9}) PG GUID ([^\s(\]]{1,80})|(\d{1,9}))\s?(?:\(([^)]{1,80})\))? Rank (\d{1,6})\]"
)
_GROUP_RANK = re.compile(r"\[Rank (\d{1,6})\]")
_STATUS = re.compile(
    r"(?:work sequence id|detected by watchdog at work|Timeout at NCCL work): (\d{1,18})"
    r".{1,20}?last enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})"
)
_LAST = re.compile(r"Last enqueued NCCL work: (-?\d{1,18}), last completed NCCL work: (-?\d{1,18})")
_REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\]")
_OBSERVED = re.compile(
    r"Observed flight recorder dump signal from another rank"
    r"|Received a (?:global )?timeout (?:signal )?from another rank"
    r"|Received a dump signal (?:due to a collective timeout )?"
    r"from (?:this local rank|another rank| ?rank \d+)"
)
_STUCK = re.compile(r"watchdog got stuck for (?P<n>\d{1,9}) seconds|watchdog hung for (?P<m>\d{1,9})")
_HEARTBEAT = re.compile(
    r"Heartbeat monitor timed out|Could not get (?:the )?heartbeat|Heartbeat of .{1,40} missed"
)
_MARKS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (_OBSERVED, " signal ", "dump signal"),
    (_STUCK, "watchdog ", "watchdog stuck"),
    (_HEARTBEAT, "eartbeat", "watchdog silent"),
)
_KINDS = {kind for _, _, kind in _MARKS}
_WORDS = ("WorkNCCL(", " work", "signal", "atchdog", "Heartbeat")
_PER_LINE = 32
_BEFORE = 1_000  # characters before the words, in which their prefix is
_NONE = 2**64 - 1  # how builds that print unsigned numbers write -1


def parse(text: str, file: str, line: int, collector: float | None) -> Iterator[tuple[int, int, Event]]:
    """Yield the events of a line that may hold one of the watchdog's texts: where the words of each begin
    and end, and the event. At most `_PER_LINE` of each kind.
    """
    if not any(word in text for word in _WORDS):
        return
    repeated = int(found.group(1)) if (found := _REPEATED.search(text)) else 0
    for found in islice(_TIMEOUT.finditer(text), _PER_LINE) if "WorkNCCL(" in text else ():
        caught, seq, op, numel_in, numel_out, timeout_ms, ran_ms, blocked = found.groups()
        if not (caught or ran_ms or blocked):
            continue  # torch prints works for other reasons, too
        before = text[max(0, found.start() - _BEFORE) : found.start()]
        group_ranks = _GROUP_RANK.findall(before)
        event: Event = Timeout(
            file,
            line,
            quote(text, found.start()),
            origin(before, collector),
            seq=int(seq) if seq else NO_NUMBER,
            op=op,
            numel_in=int(numel_in) if numel_in else None,
            numel_out=int(numel_out) if numel_out else None,
            timeout_ms=int(timeout_ms),
            ran_ms=int(ran_ms) if ran_ms else None,
            rank=int(group_ranks[-1]) if group_ranks else None,
            group=label(before),
            repeated=repeated,
        )
        yield found.start(), found.end(), event
    for pattern, literal, numbered in ((_STATUS, "last enqueued", True), (_LAST, "Last enqueued", False)):
        if literal not in text:
            continue
        for found in islice(pattern.finditer(text), _PER_LINE):
            before = text[max(0, found.start() - _BEFORE) : found.start()]
            group = label(before)
            if group is not None:
                numbers = [_signed(part) for part in found.groups()]
                event = Status(
                    file,
                    line,
                    quote(text, found.start()),
                    origin(before, collector),
                    group=group,
                    seq=numbers[0] if numbered else None,
                    enqueued=numbers[-2],
                    completed=numbers[-1],
                )
                yield found.start(), found.end(), event
    for pattern, literal, kind in _MARKS:
        if literal not in text:
            continue
        for found in islice(pattern.finditer(text), _PER_LINE):
            before = text[max(0, found.start() - _BEFORE) : found.start()]
            seconds = found.groupdict().get("n")
            event = Mark(
                file,
                line,
                quote(text, found.start()),
                origin(before, collector),
                kind=kind,
                group=label(before),
                detail=found.group(),
                number=int(seconds) if seconds else None,
            )
            yield found.start(), found.end(), event


def label(text: str) -> GroupLabel | None:
    """The last group prefix in a text."""
    labels = _LABEL.findall(text)
    if not labels:
        return None
    local, guid, number, desc, rank = labels[-1]
    return GroupLabel(
        int(local) if local else None,
        guid or None,
        int(number) if number else None,
        None if desc in ("", "undefined") else desc,
        int(rank),
    )


def headless(event: Event) -> bool:
    """Return whether an event is the end of a message whose beginning, with the rank, is a line before."""
    if isinstance(event, Timeout):
        return event.rank is None and event.group is None
    return isinstance(event, Mark) and event.kind in _KINDS and event.group is None


def _signed(text: str) -> int:
    number = int(text)
    return -1 if number == _NONE else number
