"""The console through which commands print with colours and in tables: foreign text does no harm in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich import console as rich_console
from rich.segment import Segment
from rich.text import Text

from lockstep.report.safe_text import one_line
from lockstep.report.streams import plain


class Console(rich_console.Console):
    """rich's, in which a text or a table's string is one line: a line break in it is spelled out, but for
    those at the begin of what is printed, and so is every control character. Text is not searched for markup
    unless that is asked for."""

    def __init__(self, *, file: TextIO | None = None, markup: bool = False, **options: Any) -> None:
        options = {"emoji": False, "highlight": False, **options}
        # rich asks for IO[str] and only writes.
        super().__init__(file=cast(Any, plain(file or sys.stdout)), markup=markup, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        first = objects[0] if objects else ""
        if isinstance(first, str) and len(objects) == 1:
            objects = (first.lstrip("\n"),)
            for _ in range(len(first) - len(objects[0])):
                super().print()
        super().print(*map(_in_one_line, objects), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(one_line(text), **options)

    def render(
        self, renderable: rich_console.RenderableType, options: rich_console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text == "\n":
                yield segment
            else:
                yield Segment(_spelled(segment.text), segment.style)


def _spelled(text: str) -> str:
    """As `one_line`; rich has line breaks of its own at ends."""
    return "\n".join(map(one_line, text.split("\n")))


def _in_one_line(text: Any) -> Any:
    if isinstance(text, Text) and "\n" in text.plain:
        return Text("\\n").join(text.split("\n", allow_blank=True))
    return text
