"""The page of what was tried: a table for each question, from the log alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.version import Version

from lockstep import stacks
from lockstep.experiments.bisect.log import Try
from lockstep.experiments.bisect.search import Found, Mark, conclude
from lockstep.report.safe_text import markdown

OUTCOMES = {"good": "survives", "bad": "**hangs**", "refuses": "refuses to start", "untestable": "untestable"}
MARKS = {"good": Mark.GOOD, "bad": Mark.BAD, "refuses": Mark.UNTESTABLE, "untestable": Mark.UNTESTABLE}

USUAL_ARM = "without the fix"
_HEAD = """# Which releases hang

Made by `lockstep bisect --page` (`nox -s bisect`) from its log: on every release named here the whole job was
run for {steps} steps in an environment of its own. Unless a table says otherwise DP rank 0's worker of the
rollout pauses for 6 seconds in the third generation, and nothing else is done to the job.

*hangs*: the ledgers show the group of the rollout's data-parallel ranks stuck. *survives*: the job went
through in step, pause included. *refuses to start*: by a check of the release's own, quoted. *untestable*: it
could not be installed, did not start, failed, or Lockstep's probe does not know it; this says nothing about
hanging. *Moved* is what differs from the pinned stack (`constraints/`) besides the release itself.
"""


def write_page(tries: Sequence[Try], path: Path, steps: int, given: Sequence[Try] = ()) -> None:
    """Writes the page. Each question's tries in the order of their releases, with what was `given` in their
    place."""
    instead = {(one.question(), one.release) for one in given}
    tries = [*(one for one in tries if (one.question(), one.release) not in instead), *given]
    questions = list(dict.fromkeys(one.question() for one in tries))
    parts = [_HEAD.format(steps=steps)]
    for question in questions:
        parts.append(_section([one for one in tries if one.question() == question]))
    parts.append(
        "\n## What was not run\n\nAny release that is in no table. Nothing here was run on GPUs"
        if all(one.device == "cpu" for one in tries)
        else "\n## What was not run\n\nAny release that is in no table"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(parts) + ".\n", encoding="utf-8")


def outline(tries: Iterable[Try]) -> str:
    """In a sentence: between which releases the verdict changes."""
    rows = sorted(tries, key=lambda one: Version(one.release))
    return sentence([one.release for one in rows], conclude(len(rows), _marks(rows)), _marks(rows))


def sentence(releases: Sequence[str], found: Found, marks: dict[int, Mark]) -> str:
    """What was found, in words; `releases` are those that the numbers mean."""
    if found.before is None:
        return "No release could be tested."
    if found.first is None:
        return f"The verdict does not change: {_word(marks[found.before])} throughout what was tried."
    words = f"{releases[found.first]} is the first that {_word(marks[found.first])}"
    if not found.between:
        return f"{words}; {releases[found.before]} {_word(marks[found.before])}."
    unknown = ", ".join(releases[i] for i in found.between)
    return (
        f"{words} of those that could be tested; {releases[found.before]} {_word(marks[found.before])}, "
        f"and it is not known of {unknown}."
    )


def _word(mark: Mark) -> str:
    return {"good": "survives", "bad": "hangs"}.get(mark.value, mark.value)


def _section(tries: Sequence[Try]) -> str:
    first = tries[0]
    # Commits stay as they were tried: their names tell no order.
    rows = list(tries) if first.source else sorted(tries, key=lambda one: Version(one.release))
    usual = first.arm == USUAL_ARM
    kept = ", ".join(f"{name} {release}" for name, release in sorted(first.wanted.items()))
    what = "commits" if first.source else "releases"
    how = ", by commit" if first.source else ""
    title = f"{first.package}{how}{f' with {kept}' if kept else ''}{'' if usual else f': {first.arm}'}"
    where = "on a CPU" if first.device == "cpu" else "on GPUs"
    tool = "probe-release --source CHECKOUT" if first.source else "bisect"
    withs = [f"--with {name}=={release}" for name, release in first.wanted.items()]
    others = [] if usual else [f"--arm '{first.arm}'"]
    others += [] if first.device == "cpu" else [f"--device {first.device}"]
    command = " ".join([f"lockstep {tool} --package {first.package}", *withs, *others])
    found = "In the order in which they were tried." if first.source else outline(rows)
    count = f"{len(rows)} {what if len(rows) > 1 else what.removesuffix('s')}"
    lines = [
        f"\n## {title}\n\n{count} tried {where} (`{command}`). {found}\n",
        f"\n| {what.removesuffix('s')} | outcome | why | moved | run |\n",
        "| --- | --- | --- | --- | ---: |\n",
    ]
    for one in rows:
        run = f"{one.seconds:.0f} s" if one.seconds else ""
        release, why, moved = map(markdown, (one.release, one.reason, moves(one)))
        lines.append(f"| {release} | {OUTCOMES[one.outcome]} | {why} | {moved} | {run} |\n")
    return "".join(lines)


def _is_itself(name: str, one: Try) -> bool:
    return name in (one.package, f"{one.package}-cpu") or name in one.wanted


def moves(one: Try) -> str:
    """What differs from the pinned stack, besides what was asked for: the pinned packages by name, the others
    as a number, since a release brings dozens of its own."""
    named = {*stacks.get().pins.releases, "torchvision", "triton"}
    others = {name: change for name, change in one.moved.items() if not _is_itself(name, one)}
    told = [f"{name} {now or 'gone'}" for name, (_, now) in others.items() if name in named]
    if rest := len(others) - len(told):
        told.append(f"{rest} other{'s' if rest > 1 else ''}")
    return ", ".join(told)


def _marks(rows: Sequence[Try]) -> dict[int, Mark]:
    return {i: MARKS[one.outcome] for i, one in enumerate(rows)}
