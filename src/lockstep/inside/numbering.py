"""The two ways in which a group's collectives are numbered, and what turns one into the other."""

from __future__ import annotations

from bisect import bisect_right


class Numbers:
    """Keys (what the recorder's status counts in) of one group -> sequence numbers of its collectives.

    They differ by what has a key but is no collective: on gloo each send and each receive. The difference is
    kept as a step function of the key, one step for each time that it changed.
    """

    def __init__(self) -> None:
        self.read = 0
        """Key of the last record read."""
        self._keys = [0]
        self._differences = [0]

    def add(self, key: int, seq: int) -> None:
        self.read = key
        if key - seq != self._differences[-1]:
            self._keys.append(key)
            self._differences.append(key - seq)

    def seq(self, key: int) -> int:
        """Sequence number of the last collective up to `key`; of the last one read where `key` is beyond."""
        key = min(key, self.read)
        return max(0, key - self._differences[max(0, bisect_right(self._keys, key) - 1)])

    def forget(self, key: int) -> None:
        """No key below `key` will be asked for any more."""
        steps = max(0, bisect_right(self._keys, key) - 1)
        del self._keys[:steps], self._differences[:steps]
