"""From a script's bytes to its syntax tree, in bounded time."""

from __future__ import annotations

import os
import subprocess
import sys

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

PARSE_LIMIT_S = 10.0
"""A launch script takes milliseconds; thousands of heredocs that never end would take minutes."""
TRIED_FIRST = 1 << 14
"""Bytes; the worst text known of this size takes 1.4 s."""

_LANGUAGE = Language(tree_sitter_bash.language())


def parse(data: bytes, limit_s: float = PARSE_LIMIT_S) -> Node | None:
    """The syntax tree of a script, errors included as nodes; None where that takes longer than `limit_s`.

    A few texts take the parser time that grows with the square of their size. It can be asked to stop, but
    crashes then (tree-sitter 0.25 and 0.26). So a text long enough for that is tried first in a process of
    its own, which can be ended.
    """
    if len(data) > TRIED_FIRST and not _is_parsed_within(data, limit_s):
        return None
    return _parse(data)


def _parse(data: bytes) -> Node:
    return Parser(_LANGUAGE).parse(data).root_node


def _is_parsed_within(data: bytes, limit_s: float) -> bool:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    trial = [sys.executable, "-m", "lockstep.audit.shell.syntax"]
    try:
        done = subprocess.run(trial, input=data, timeout=limit_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    _parse(sys.stdin.buffer.read())
