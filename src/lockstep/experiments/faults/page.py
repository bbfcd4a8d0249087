"""The matrix of faults as a page of Markdown, from the rows of its runs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lockstep.report.safe_text import markdown
from lockstep.run.summary_file import Row
from lockstep.stacks.base import Expected, Fault

_HEAD = """# Faults

Made by `lockstep faults` from runs of the whole job on a CPU (`nox -s faults`): two trainer ranks on gloo,
a rollout of data parallel size 2, three steps. Each fault is made on purpose at a chosen rank and moment:
most inside the process that they concern, some by a signal from outside. Each is the twin of something that
happens in real jobs.

*Right?* says whether verdict, side, group, last boundary that agreed, rank or process, and cause were all
the expected ones. Of two ranks that issued different collectives neither is the majority: there the verdict
is right if it tells what each of them issued. *Seconds* go from the last movement in the job to the verdict
where it hung, else from its end.

| fault | side | verdict | expected | right? | names | seconds |
| --- | --- | --- | --- | --- | --- | ---: |
"""


def write_page(faults: Sequence[Fault], rows: Sequence[Row], path: Path) -> None:
    """Writes the page; faults without a row are listed as not run."""
    by_name = {row["fault"]: row for row in rows}
    table, notes = [], []
    for fault in faults:
        row = by_name.get(fault.name)
        if row is None or "sentence" not in row:
            why = f"not run: {markdown(row['wrong'])}" if row else "not run"
            table.append(f"| {fault.name} | {fault.side} | - | {_expected(fault.expected)} | {why} | | |")
            continue
        right = "yes" if not row["wrong"] else f"**no**: {markdown(row['wrong'])}"
        names = markdown(", ".join(filter(None, (row["group"], row["named"], _after(row), row["cause"]))))
        seconds = f"{row['seconds_to_verdict']:.1f}"
        table.append(
            f"| {fault.name} | {fault.side} | {markdown(row['verdict'])} | {_expected(fault.expected)} "
            f"| {right} | {names} | {seconds} |"
        )
        notes.append(_note(fault.name, fault.twin, fault.why, row))
    text = _HEAD + "\n".join(table) + "\n\n## What was said\n\n" + "\n".join(notes)
    path.write_text(text, encoding="utf-8")


def _expected(expected: Expected) -> str:
    return ", ".join(filter(None, (expected.kinds, expected.cause)))


def _after(row: Row) -> str:
    return f"after {row['agreed']}" if row["agreed"] else ""


def _note(name: str, twin: str, why: str, row: Row) -> str:
    lines = [
        f"### {name}",
        "",
        f"Twin of: {twin}. {why[0].upper()}{why[1:]}.",
        "",
        f"> {markdown(row['sentence'])}",
    ]
    if row["cause"]:
        lines += [">", f"> cause: {markdown('; '.join((row['cause'], *row['evidence'])))}"]
    if row["done_from_outside"]:
        lines += ["", f"From outside: {markdown(_times(row['done_from_outside']))}."]
    return "\n".join(lines) + "\n"


def _times(done: Sequence[str]) -> str:
    return "; ".join(f"{what} ({n} times)" if n > 1 else what for what, n in Counter(done).items())
