"""`lockstep remedy`: lists the remedies of the rollout's hang, shows one, or writes its file."""

from __future__ import annotations

import textwrap
from pathlib import Path

from lockstep.remedies import plugin
from lockstep.remedies.model import Tried
from lockstep.remedies.tried import TRIED


class RemedyError(RuntimeError):
    """The remedy cannot be shown or written; the message says why."""


def show(name: str | None, to: Path | None) -> None:
    """Print all remedies, or the one whose id is `name`; write its file to `to`. Raises RemedyError."""
    remedies = {remedy.id: remedy for remedy in TRIED if remedy.kind != "none"}
    if name is None:
        if to is not None:
            raise RemedyError("--output needs the id of a remedy, such as independent-ranks")
        print("\n\n".join(map(_text, remedies.values())))
        return
    found = remedies.get(name.replace("_", "-").replace(" ", "-"))
    if found is None:
        raise RemedyError(f"no remedy is named {name!r}; there are: {', '.join(remedies)}")
    if to is None:
        print(_text(found))
        return
    file = plugin(found.name)
    if file is None:
        raise RemedyError(f"{found.id} is no file but a setting: {found.how}")
    try:
        with to.open("x") as target:
            target.write(file.read_text())
    except FileExistsError:
        raise RemedyError(f"{to}: it is there already; remove it, or give another name") from None
    except OSError as error:
        raise RemedyError(f"{to}: cannot be written: {error.strerror}") from error
    print(f"{to} written. Now: {found.how}")


def _text(remedy: Tried) -> str:
    lines = [remedy.id + ("" if remedy.helps else ": does not help")]
    fits = "any model" if remedy.experts else "dense models only"
    for what, text in (
        ("do", remedy.advice),
        ("costs", remedy.gives_up),
        ("fits", fits),
        ("run", remedy.measured),
    ):
        lines.append(textwrap.fill(f"{what}: {text}", 100, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)
