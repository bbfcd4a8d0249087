"""From a script's bytes to its syntax tree, in bounded time."""

from __future__ import annotations

import os
import resource
import time

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

PARSE_LIMIT_S = 3
"""Seconds of CPU for one script with all that is quoted in it. A launch script takes milliseconds; thousands
of heredocs that never end would take minutes."""
TRIED_FIRST = 1 << 12
"""Bytes; the worst text known of this size takes 0.1 s."""

_LANGUAGE = Language(tree_sitter_bash.language())


class Syntax:
    """Parses a script and the scripts quoted in it, all of them together in `limit_s` seconds of CPU."""

    def __init__(self, limit_s: int = PARSE_LIMIT_S) -> None:
        self._limit_s = limit_s
        self._used_s = 0.0
        self._parsed: dict[bytes, Node] = {}

    def tree(self, data: bytes) -> Node | None:
        """Return the root of the tree, errors included as nodes; None where the time is used up.

        A text that is asked for again (a loop, a function) is not parsed again.
        """
        if data not in self._parsed:
            left = self._limit_s - self._used_s
            if left <= 0 or (len(data) > TRIED_FIRST and not _is_parsed_within(data, left)):
                self._used_s = self._limit_s
                return None
            begun = time.thread_time()
            self._parsed[data] = Parser(_LANGUAGE).parse(data).root_node
            self._used_s += time.thread_time() - begun
        return self._parsed[data]


def _is_parsed_within(data: bytes, limit_s: float) -> bool:
    """Parse in a forked child that the kernel ends after about `limit_s` of CPU; True if it got through.

    A few texts take the parser time that grows with the square of their size. It can be asked to stop, but
    crashes then (tree-sitter 0.25 and 0.26). A fork starts no interpreter, so nothing is imported from a
    folder that a stranger filled.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            seconds = max(1, round(limit_s))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            Parser(_LANGUAGE).parse(data)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return status == 0
