"""Small questions about single lines of shell, asked before there is anything to parse."""

from __future__ import annotations

import re

_HEREDOC = re.compile(r"(?<!<)<<-?\s*(['\"\\]?)([A-Za-z_]\w*)\1")
_QUOTED = r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\""
_EXPANDED = r"\$\((?:[^()]|\([^()]*\))*\)|\$\{[^}]*\}|\$(?![({])|`[^`]*`"
_WORD = rf"(?:[^\s'\"$\\;&|()<>`]|{_QUOTED}|{_EXPANDED})*"
_ASSIGNMENT = re.compile(rf"\s*([A-Za-z_]\w*)={_WORD}\s*$")
_LOOK_AHEAD = 200


def open_quote(line: str, quote: str) -> str:
    """The quote that is open at a line's end, given the one open at its start; empty for none."""
    i = 0
    while i < len(line):
        char = line[i]
        if quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\":
            i += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (i == 0 or line[i - 1].isspace()):
            break
        i += 1
    return quote


def closes_later(lines: list[str], start: int, quote: str) -> bool:
    """Whether an open quote is closed within a screenful: an apostrophe in a sentence is not."""
    return any(quote in line for line in lines[start : start + _LOOK_AHEAD])


def heredoc(line: str, i: int, last: dict[str, int]) -> str:
    """The line that ends the heredoc begun on line `i`; empty where none begins or it never ends.

    `last`: for each text of a line, blanks around it taken off, the last line that reads so.
    """
    match = _HEREDOC.search(line)
    return match[2] if match and last.get(match[2], -1) > i else ""


def one_assignment(line: str) -> str | None:
    """The name, where a line is one assignment and nothing else."""
    match = _ASSIGNMENT.match(line)
    return match[1] if match else None
