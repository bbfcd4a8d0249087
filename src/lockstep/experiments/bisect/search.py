"""Which release to try next, and what the ones that were tried say. Pure: marks in, a number out.

Releases are numbered from 0, oldest first. As in git bisect, one change is looked for: the releases before it
have one mark, those from it on the other, and those that cannot be tested say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Mark(str, Enum):
    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"


@dataclass(frozen=True)
class Found:
    """What the marks say so far."""

    first: int | None
    """The first release known to have the mark of the newest; None where old and new have the same, or
    nothing is known."""
    before: int | None
    """The last release known to have the mark of the oldest."""
    between: tuple[int, ...]
    """Releases between the two that could not be tested, or have not been: the change may be in any."""


def next_release(count: int, marks: Mapping[int, Mark]) -> int | None:
    """The release to try next of `count`; None when the marks say all that there is to say.

    The two ends come first, then the middle of what is between the two marks; where that cannot be tested,
    the nearest to it that can. Without untestable ones it takes at most ceil(log2(count)) + 2 tries.
    """
    rest = [i for i in range(count) if marks.get(i) is not Mark.UNTESTABLE]
    for end in (rest[:1], rest[-1:]):
        if end and end[0] not in marks:
            return end[0]
    found = conclude(count, marks)
    if found.first is None or found.before is None:
        return None
    middle = (found.before + found.first) / 2
    return min((i for i in found.between if i not in marks), key=lambda i: abs(i - middle), default=None)


def conclude(count: int, marks: Mapping[int, Mark]) -> Found:
    """Between which two tried releases the change is."""
    tried = [i for i in range(count) if marks.get(i, Mark.UNTESTABLE) is not Mark.UNTESTABLE]
    if not tried or marks[tried[0]] is marks[tried[-1]]:
        return Found(None, tried[-1] if tried else None, ())
    first = next(i for i in tried if marks[i] is marks[tried[-1]])
    before = max(i for i in tried if i < first)
    return Found(first, before, tuple(range(before + 1, first)))
