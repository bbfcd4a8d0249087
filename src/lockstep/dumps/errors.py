"""What can be wrong with a dump, and how much of one is read."""

from __future__ import annotations

MAX_FILE = 64 << 20
"""Bytes of one dump; 2,000 records with their stacks take about 300 kB."""
MAX_ITEMS = 1 << 17
"""Objects in one container."""
MAX_MEMO = 1 << 20
"""Objects that may be referred to again."""
MAX_OBJECTS = 1 << 22
"""Objects made for one dump, those of records like the one before left out: they are not made."""
MAX_TEXT = 1 << 20
"""Bytes of one string."""
MAX_NAME = 256
"""Characters of a group's name or of an operation's: torch's have fewer than 80. Sentences repeat them."""
MAX_RANKS = 1 << 17
"""Ranks of one group."""
MAX_MEMBERS = 1 << 22
"""Ranks of all groups together, of a set of dumps."""
MAX_TOLD = 256
"""Problems, and consequences, that a verdict lists; it says how many more there are."""
MAX_DEPTH = 16
"""Containers inside each other; torch writes four."""
MAX_WORK = 1 << 24
"""Tensor extents that are multiplied, and stack frames that are looked at, for one dump: lists may be shared,
so the file's size does not bound them."""


class DumpError(Exception):
    """No dump here can be read, or one cannot: `place` is the byte at which it is not as it should be."""

    def __init__(self, path: str, place: int | None, what: str) -> None:
        super().__init__(f"{path}: byte {place}: {what}" if place is not None else f"{path}: {what}")
        self.path = path
        self.place = place
        self.what = what


class Malformed(Exception):
    """Raised below the level that knows the file; `place` is a byte offset in it."""

    def __init__(self, place: int | None, what: str) -> None:
        super().__init__(what)
        self.place = place
        self.what = what
