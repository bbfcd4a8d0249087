"""The fast lane: records that differ from an earlier one in values only are matched whole, by a regular
expression.

A dump is thousands of dicts with the same keys in the same order. Once a record has been read opcode by
opcode, the bytes of its keys are known, and what may stand between them is known, too: this compiles to an
expression that takes a record in one step, holds no object but the few values that matter, and matches
nothing that the machine would refuse to run (references, which it does not follow, excepted). Every
alternative begins with another byte, so there is nothing to try twice: time is linear in the record.
"""

from __future__ import annotations

import re

_INT = rb"(?:K.|M..|J....|\x8a\x08.{8})"
_REF = rb"(?:h.|j....)"
_ATOM = rb"(?:h.|K.|[N\x88\x89]|M..|J....|j....|\x8a\x08.{8}|G.{8})"
_REFS = rb"\]\((?:h.|j....){0,512}e"
_SHAPES = rb"\]\((?:\]\(" + _INT + rb"{0,16}e){0,1024}e"
_PAIR = _REF + _REF + rb"\x86"
_VALUES = {
    "frames": rb"\]\((?:h.|j....){0,512}e",
    "process_group": _PAIR,
    "input_sizes": _SHAPES,
    "output_sizes": _SHAPES,
    "input_dtypes": _REFS,
    "output_dtypes": _REFS,
}
CAPTURED = ("pg_id", "collective_seq_id", "profiling_name", "input_sizes", "state", "retired", "is_p2p")
"""The values that an expression captures, in its order. Records are alike when all of them but the sequence
number are equal."""
_LAST = {"pg_id": "process_group", "input_sizes": "output_dtypes"}
"""Neighbours that are captured as one, from the first of them to the last."""


def compile_lane(keys: tuple[str, ...], written: dict[str, bytes]) -> re.Pattern[bytes] | None:
    """The expression for records with these keys; `written` has the bytes by which each key is referred to.

    None where the layout is not one that torch writes: the machine reads such a file well enough. The
    captures are `CAPTURED`.
    """
    if any(key not in written for key in keys):
        return None
    parts = [rb"\}\("]
    order: list[str] = []
    closing: str | None = None
    for key in keys:
        parts.append(re.escape(written[key]))
        if key in CAPTURED and closing is None:
            order.append(key)
            parts.append(b"(")
            closing = _LAST.get(key, key)
        parts.append(_VALUES.get(key, _ATOM))
        if key == closing:
            parts.append(b")")
            closing = None
    if tuple(order) != CAPTURED or closing is not None:
        return None
    return re.compile(b"".join(parts) + b"u", re.DOTALL)


def reference(number: int) -> bytes:
    """How the pickler refers to what it has remembered under this number."""
    return b"h" + bytes((number,)) if number < 256 else b"j" + number.to_bytes(4, "little")


class Integers(dict[bytes, int]):
    """The integer that some bytes of a pickle stand for."""

    def __missing__(self, raw: bytes) -> int:
        body = raw[2:] if raw[:1] == b"\x8a" else raw[1:]
        value = int.from_bytes(body, "little", signed=raw[:1] in b"J\x8a")
        if len(self) < 1 << 16:
            self[raw] = value
        return value
