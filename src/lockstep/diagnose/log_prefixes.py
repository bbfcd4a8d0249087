"""Takes a line out of its wrappings: colours, quotes, collectors' prefixes; and reads who wrote it from
them.
"""

from __future__ import annotations

import re

from lockstep.diagnose.events import Origin

MAX_LINE = 8_192  # characters looked at; a longer line is cut
_QUOTE = 400
_ENDS = (300, 700)  # characters of a long line's beginning and end in which its writer is looked for

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
_TP = re.compile(r"\d ((?:DP\d{1,4} )?TP\d{1,4}(?: EP\d{1,4})?)\]")  # SGLang
_C10_TIME = re.compile(r"\[[EWIF](\d{1,2}?)(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?) ")
_GLOG_TIME = re.compile(r"\b[EWIF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d\.\d+) \d")
_VLLM_TIME = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_ISO_TIME = re.compile(r"\b\d{4}-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")
_TABLE = re.compile(r"^\s{0,80}[|│┃║] ?(.*?)\s{0,200}[|│┃║]\s{0,80}$", re.S)
# ruff: noqa: E501 (a table of prefixes)
# What stands in front of a message: who wrote it, when, at what level, from where.
_FRONT = re.compile(
    r"\s{0,40}(?:"
    r"\[(?:rank|default|[a-z]{1,20})\d{1,6}\]:|\[\d{1,3},\d{1,6}\]<std(?:err|out)>:?|\[rank: \d{1,6}\]"
    r"|\((?:\w{1,60}(?:\([^)]{0,60}\))? )?(?:rank=\d{1,6} )?pid=\d{1,9}(?:, ip=[\w.:-]{1,100})?\)"
    r"|\[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?: [EWIF] \d{1,9} \d{1,9})?\]?"
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d{1,9} \S{1,160}\]|\[[EWIF]\d{0,4} (?:[\d:.]{1,20} )?[\w.]{1,60}:\d{1,6}\]"
    r"|\[?(?:INFO|WARNING|ERROR|DEBUG|CRITICAL|FATAL)\]?:?(?: \d\d-\d\d \d\d:\d\d:\d\d)?"
    r"|\[[\w./-]{1,80}:\d{1,6}(?::\w{1,60})?\]|\[PG [^\]]{1,120}\]|\[Rank \d{1,6}\]:?|\d{1,6}:(?= )|[|>│]"
    r"|(?:\d{1,3}\.){3}\d{1,3}: |[a-z][\w.-]{0,60}: (?=\[rank|\[[EWIF]\d|[A-Z]\w*Error)"
    r"|\[[\w./-]{1,40}\]"
    r")\s{0,4}"
)
_WRITER = re.compile(r"\[rank\d{1,6}\]:|\[[EWIF]\d{3,4} \d\d:\d\d:")
_NEW = re.compile(
    r"\s{0,8}(?:\[(?:rank|default|[a-z]{1,20})\d{1,6}\]:|\[rank: \d|\[\d{1,3},\d{1,6}\]<std|\((?:\w{1,60}(?:\([^)]{0,60}\))? )?(?:rank=\d{1,6} )?pid=\d"
    r"|\[?\d{4}-\d\d-\d\d[T _]\d\d:|[EWIF]\d{4} \d\d:|\[[EWIF] |\[?(?:INFO|WARNING|ERROR|DEBUG|CRITICAL|FATAL)\b|\d{1,6}: |>"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\[ {0,8}\d{1,9}\.\d{3,9}\] )"
)
_BEGINS = re.compile(
    r"\s{0,8}(?:Traceback \(|File \"|frame #\d|what\(\)|terminate called|Exception raised from"
    r"|[A-Za-z_][\w.]{0,120}(?:Error|Exception)\b|[=*-]{5}|\d{1,3}%\||\S{1,40}:? +\d{1,3}%\||\{'|$)"
)
_DAYS = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)


def decode(raw: bytes) -> str:
    """Return a line as text, without colours and at most `MAX_LINE` long."""
    text = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _ANSI_REMAINS.sub("", text) if "m" in text and "[" in text else text


def bare(text: str) -> int:
    """Return where the message begins behind what says who wrote it, when and at what level."""
    at = 0
    for _ in range(8):
        found = _FRONT.match(text, at)
        if not found or found.end() == at:
            break
        at = found.end()
    while at < len(text) and text[at] == " ":
        at += 1
    return at


def begins(text: str) -> bool:
    """Return whether a line is the beginning of a message, so that it cannot go on with another one."""
    return bool(_NEW.match(text) or _BEGINS.match(text) or _WRITER.search(text, 0, 160))


def strip(text: str) -> tuple[str, float | None]:
    """The line without markdown quotes and collectors' prefixes, and the collector's time if it had one."""
    text = _MARKDOWN.sub("", text) if text.lstrip().startswith(">") else text
    if text and text.rstrip()[-1:] in ("|", "│", "┃", "║") and (cell := _TABLE.match(text)):
        text = cell.group(1)
    when = None
    for _ in range(3):
        found = _COLLECTOR.match(text) or _COMPOSE.match(text)
        if not found:
            break
        when = when if when is not None else moment(found.group())
        text = text[found.end() :]
    return text, when


def quote(text: str, at: int = 0) -> str:
    """Return at most 400 characters of a text in one line, with what stands at `at` among them."""
    if len(text) > _QUOTE:
        at = max(0, at - 150) if at > 250 else 0
        text = ("…" if at else "") + text[at : at + 2 * _QUOTE]
    text = " ".join(text.split())
    return text if len(text) <= _QUOTE else text[: _QUOTE - 1] + "…"


def moment(text: str) -> float | None:
    """Seconds since the start of the year of the last time stamp in the text; None if there is none."""
    if ":" not in text:
        return None
    for pattern in (_C10_TIME, _GLOG_TIME, _VLLM_TIME, _ISO_TIME):
        if stamps := pattern.findall(text):
            month, day, hour, minute = (int(part) for part in stamps[-1][:4])
            if not (1 <= month <= 12 and 1 <= day <= 31):
                return None
            seconds = float(stamps[-1][4].replace(",", "."))
            return ((_DAYS[month - 1] + day - 1) * 24 + hour) * 3600.0 + minute * 60 + seconds
    return None


def origin(text: str, collector: float | None = None) -> Origin:
    """Return who wrote the message that follows this text.

    The nearest prefix wins, as lines of several ranks run together. Of a long text only both ends are read.
    """
    if len(text) > _ENDS[0] + _ENDS[1]:
        text = text[: _ENDS[0]] + " " + text[-_ENDS[1] :]
    rank = pid = process = host = None
    if ranks := _RANK.findall(text):
        rank = int(ranks[-1])
    if "pid=" in text and (found := _RAY.findall(text)):
        process, ray_rank, ray_pid, host = found[-1]
        pid, host = int(ray_pid), host or None
        rank = int(ray_rank) if rank is None and ray_rank else rank
    if "TP" in text and (tag := _TP.findall(text)):
        process, pid = tag[-1], None
    if process is None:
        if task := _SLURM.match(text):
            process = f"task {task.group(1)}"
        elif "]:" in text and (local := _ELASTIC.findall(text)):
            process = f"local rank {local[-1]}"
    when = moment(text)
    return Origin(rank, process, pid, host, when if when is not None else collector)
