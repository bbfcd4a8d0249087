"""The lines of a ledger as docs/ledger.md defines them, one class per value of `k`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

VERSION = 1
MOST_RANKS = 1_000_000
"""Of one group."""

# Limits keep nonsense in a damaged file from becoming numbers that no machine word or clock holds.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Index = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class Line(msgspec.Struct, frozen=True, tag_field="k", kw_only=True):
    """`m` is the same moment as `t` on a clock that nobody sets, `i` the line's number in its file, from 1;
    ledgers of older releases have neither.
    """

    m: Seconds | None = None
    i: Index | None = None


class ProcessLine(Line, frozen=True, tag="process"):
    v: int
    t: Seconds
    side: Literal["trainer", "rollout"]
    role: str
    rank: Count
    pid: Count
    host: str = ""
    clock: str = ""
    stack: str = ""
    rules: Count = 1
    versions: dict[str, str] = {}
    argv: list[str] = []


class GroupLine(Line, frozen=True, tag="group"):
    t: Seconds
    g: Count
    name: str
    ranks: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MOST_RANKS)]
    rank: Count
    id: str = ""
    lib: str = ""
    backend: str = ""


class OpLine(Line, frozen=True, tag="op"):
    id: Count
    op: str
    dtype: str = ""
    n: Count | None = None


class BoundaryLine(Line, frozen=True, tag="boundary"):
    t: Seconds
    b: str
    n: Index
    step: Count | None = None
    c: dict[Count, tuple[Count, str, dict[str, Count]]] = {}
    s: dict[Count, list[tuple[Count, Index]]] = {}


class Waiting(msgspec.Struct, frozen=True):
    """A collective in which a process waits: `seq` counts in group `g` from 1, `at` is the issuing line.

    `op` is None where it is not known any more.
    """

    g: Count
    seq: Index
    op: str | None = None
    dtype: str = ""
    n: Count | None = None
    at: str | None = None


class Pulse(Line, frozen=True, tag="pulse"):
    t: Seconds
    c: dict[Count, tuple[Count, Count]] = {}
    beat: Count = 0
    cpu: Seconds | None = None
    queued: Seconds | None = None
    park: str | None = None
    blocked: str | None = None
    w: Waiting | None = None
    s: dict[Count, tuple[Count, list[tuple[Count, Index]]]] = {}
    at: list[str] = []


class LostLine(Line, frozen=True, tag="lost"):
    t: Seconds
    g: Count | None = None
    records: Count | None = None


class ErrorLine(Line, frozen=True, tag="error"):
    t: Seconds
    what: str = ""


class EndLine(Line, frozen=True, tag="end"):
    t: Seconds
    by: str | None = None
    c: dict[Count, tuple[Count, str, dict[str, Count]]] = {}
    s: dict[Count, list[tuple[Count, Index]]] = {}


_KINDS: dict[str, type[Line]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (ProcessLine, GroupLine, OpLine, BoundaryLine, Pulse, LostLine, ErrorLine, EndLine)
}
_KEYS = {k: frozenset(kind.__struct_encode_fields__) | {"k"} for k, kind in _KINDS.items()}
_decoder = msgspec.json.Decoder(dict[str, Any])


class BadLine(Exception):
    """A line that is not what the format says; the message says what was expected."""


class UnknownKind(Exception):
    """A line of a kind that this version does not know; `str()` is the kind, `i` the line's number."""

    def __init__(self, kind: str, i: int | None) -> None:
        super().__init__(kind)
        self.i = i


def parse(text: bytes) -> tuple[Line, list[str]]:
    """One line of a ledger, without its newline, and the keys in it that are not known.

    Raises BadLine or UnknownKind, and nothing else, whatever the bytes are.
    """
    try:
        data = _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadLine(f"expected one JSON object ({error})") from None
    k = data.get("k")
    if not isinstance(k, str):
        raise BadLine('expected a string under the key "k"')
    if k not in _KINDS:
        raise UnknownKind(k, i if isinstance(i := data.get("i"), int) else None)
    try:
        line = msgspec.convert(data, _KINDS[k], str_keys=True)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadLine(f"expected a {k} line ({error})") from None
    return line, [key for key in data if key not in _KEYS[k]]
