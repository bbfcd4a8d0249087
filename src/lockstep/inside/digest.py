"""Collectives in order, condensed: a running digest, a count per operation, a run-length encoded stream."""

from __future__ import annotations

import hashlib

MAX_PAIRS = 4096


class Stream:
    """What one process has issued in one group, from number `issued` + 1 on."""

    def __init__(self, issued: int = 0) -> None:
        self.issued = issued
        self.tally: dict[str, int] = {}
        self._digest = b"\0" * 8
        self._runs: list[list[int]] = []
        self._overflow = False

    def add(self, token: int, op: str, dtype: str, n: int | None) -> None:
        self.issued += 1
        self.tally[op] = self.tally.get(op, 0) + 1
        text = f"{op} {dtype} {n}".encode()
        self._digest = hashlib.blake2b(self._digest + text, digest_size=8).digest()
        if self._runs and self._runs[-1][0] == token:
            self._runs[-1][1] += 1
        elif len(self._runs) < MAX_PAIRS:
            self._runs.append([token, 1])
        else:
            self._overflow = True

    @property
    def digest(self) -> str:
        return self._digest.hex()

    def take_runs(self) -> list[list[int]] | None:
        """`[[op id, repeats], ...]` since the last call; None when there were too many to keep."""
        runs, self._runs = self._runs, []
        overflow, self._overflow = self._overflow, False
        return None if overflow else runs
