"""Takes a line out of its wrappings: colours, quotes, collectors' prefixes; and reads who wrote it from
them.
"""

from __future__ import annotations

import re

from lockstep.diagnose.events import Origin

MAX_LINE = 16_384  # characters looked at; a longer line is cut
_QUOTE = 400

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07")
# What web pages make of ESC when they are copied: the sequence without its first byte.
_ANSI_REMAINS = re.compile(r"\[(?:\d{1,2}(?:;\d{1,2}){0,3})m")
_MARKDOWN = re.compile(r"^(?:\s{0,3}> ?)+")
# kubectl logs --timestamps and docker logs -t: RFC 3339 with nanoseconds in front of everything; kubectl
# --prefix: [pod/name/container]
_COLLECTOR = re.compile(
    r"^(?:\[pod/[^\]\s]{1,200}\] )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) ?"
)
_COMPOSE = re.compile(r"^[\w.-]{1,80} +\| ")
_RANK = re.compile(r"\[rank(\d{1,6})\]")
_RAY = re.compile(r"\((\w{1,60})(?: rank=(\d{1,6}))? pid=(\d{1,9})(?:, ip=([\w.:-]{1,100}))?\)")
_SLURM = re.compile(r"^\s{0,6}(\d{1,6}): ")
_ELASTIC = re.compile(r"\[(?!rank)[a-z]{1,30}(\d{1,6})\]:")
_C10_TIME = re.compile(r"\[[EWIF](\d{1,2}?)(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?) ")
_VLLM_TIME = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_ISO_TIME = re.compile(r"\b\d{4}-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def decode(raw: bytes) -> list[str]:
    """The segments of one physical line: what a terminal would have drawn over each other at each carriage
    return.
    """
    text = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = _ANSI_REMAINS.sub("", text) if "m" in text and "[" in text else text
    return [part for part in text.split("\r") if part.strip()] if "\r" in text else [text]


def strip(text: str) -> tuple[str, float | None]:
    """The line without markdown quotes and collectors' prefixes, and the collector's time if it had one."""
    text = _MARKDOWN.sub("", text) if text.lstrip().startswith(">") else text
    when = None
    for _ in range(3):
        found = _COLLECTOR.match(text) or _COMPOSE.match(text)
        if not found:
            break
        when = when if when is not None else moment(found.group())
        text = text[found.end() :]
    return text, when


def quote(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE else text[: _QUOTE - 1] + "…"


def moment(text: str) -> float | None:
    """Seconds since the start of the year of the last time stamp in the text; None if there is none."""
    for pattern in (_C10_TIME, _VLLM_TIME, _ISO_TIME):
        if stamps := pattern.findall(text):
            month, day, hour, minute = (int(part) for part in stamps[-1][:4])
            if not (1 <= month <= 12 and 1 <= day <= 31):
                return None
            seconds = float(stamps[-1][4].replace(",", "."))
            return ((_DAYS[month - 1] + day - 1) * 24 + hour) * 3600.0 + minute * 60 + seconds
    return None


def origin(text: str, collector: float | None = None) -> Origin:
    """Who wrote the message that follows this text. The nearest prefix wins: lines of several ranks run
    together.
    """
    rank = pid = process = host = None
    if ranks := _RANK.findall(text):
        rank = int(ranks[-1])
    if found := _RAY.findall(text):
        process, ray_rank, ray_pid, host = found[-1]
        pid, host = int(ray_pid), host or None
        rank = int(ray_rank) if rank is None and ray_rank else rank
    if process is None:
        if task := _SLURM.match(text):
            process = f"task {task.group(1)}"
        elif local := _ELASTIC.findall(text):
            process = f"local rank {local[-1]}"
    when = moment(text)
    return Origin(rank, process, pid, host, when if when is not None else collector)
