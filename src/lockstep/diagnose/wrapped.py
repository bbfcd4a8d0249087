"""Messages that were broken on their way here: by a terminal within words, by a mail between words, by the
cells of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from lockstep.diagnose.events import Event
from lockstep.diagnose.nccl import headless

BEFORE, BEHIND = 3, 5
"""How many pieces of a message are looked for before and behind the line that has its telling words."""
_ALL_WAYS = 3  # up to so many breaks every combination of gluing with and without a space is tried
_MAX_TEXT = 4_000

Parse = Callable[[str], "Iterator[tuple[int, int, Event]]"]


def rejoined(pieces: Sequence[str], hit: int, parse: Parse) -> list[tuple[int, Event]]:
    """Return the events that only the pieces together tell, each with the number of the piece in which it
    begins. Empty if there are none. Pieces behind `hit` are no messages of their own.
    """
    if len(pieces) < 2 or sum(map(len, pieces)) > _MAX_TEXT:
        return []
    best: list[tuple[int, Event]] = []
    for glues in _glues(len(pieces) - 1):
        text, joints = _join(pieces, glues)
        found = [
            (piece, event)
            for start, end, event in parse(text)
            if (piece := sum(joint <= start for joint in joints)) >= hit
            or any(start < joint < end for joint in joints)
        ]
        if _told(found) > _told(best):
            best = found
    return best


def _told(found: Sequence[tuple[int, Event]]) -> int:
    """Return how much events tell: one that has a kind and a writer more than one that has not."""
    return sum(
        1 + 2 * (getattr(event, "kind", "") != "exception") + 2 * (not headless(event)) for _, event in found
    )


def _glues(breaks: int) -> Iterator[Sequence[str]]:
    yield [""] * breaks
    yield [" "] * breaks
    if 1 < breaks <= _ALL_WAYS:
        for glues in product(("", " "), repeat=breaks):
            if len(set(glues)) > 1:
                yield glues


def _join(pieces: Sequence[str], glues: Sequence[str]) -> tuple[str, list[int]]:
    text = pieces[0]
    joints = []
    for glue, piece in zip(glues, pieces[1:], strict=True):
        text = (text.rstrip(" ") if glue else text) + glue
        joints.append(len(text))
        text += piece.lstrip(" ") if glue else piece
    return text, joints
