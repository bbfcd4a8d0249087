"""Makes foreign text safe to show: names in ledgers, lines of logs and scripts, file names, what users type.

A terminal obeys escape sequences, and characters that change the direction of writing hide what is written.
A line break in a name begins a line that looks like Lockstep's own. All of them are shown as `\\x1b`,
`\\u202e`, `\\n` instead. Standard library only.
"""

from __future__ import annotations

import json
import re
from typing import Any

_UNSAFE = (
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 and C1; line breaks and tabs are apart
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # direction, lines, invisible
    "\ud800-\udfff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f"  # bytes that were no text; no characters
)
_IN_LINES = re.compile(f"[{_UNSAFE}]|\r(?!\n)")
_IN_A_LINE = re.compile(f"[{_UNSAFE}\r\n]")
_SHORT = {"\n": "\\n", "\r": "\\r"}


def lines(text: str) -> str:
    """The text with every unsafe character spelled out; line breaks and tabs stay."""
    return _IN_LINES.sub(_spelled, text)


def one_line(text: str) -> str:
    """The same with line breaks spelled out too: for all that is shown within one line."""
    return _IN_A_LINE.sub(_spelled, text)


def markup(text: str) -> str:
    """One line to put into rich's markup, such as `[bold]`: brackets in it stay brackets."""
    from rich.markup import escape

    return escape(one_line(text))


def markdown(text: str) -> str:
    """One line for a page of Markdown, in a table or out of it: no links, pictures, code or HTML."""
    text = " ".join(one_line(text).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("`", "'")
    return re.sub(r"([|\[\]])", r"\\\1", text)


def json_text(data: Any) -> str:
    """JSON in ASCII alone, indented."""
    return json.dumps(data, indent=2).replace("\x7f", "\\u007f")


def _spelled(found: re.Match[str]) -> str:
    character = found[0]
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that was not UTF-8 (PEP 383)
        number -= 0xDC00
    if character in _SHORT:
        return _SHORT[character]
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )
