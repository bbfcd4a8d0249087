"""A verdict for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.verdict import Verdict


def to_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain dicts, lists, strings and numbers, with the field names of `Verdict`."""
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(verdict)
    return data
