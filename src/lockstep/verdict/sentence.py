"""A verdict's parts in words."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lockstep.record import Operation, Pulse, Waiting

from .groups import ranks_text
from .model import GroupView, RankView

# The flight recorder has the names of C++, people know those of Python.
_DTYPES = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Half": "float16",
    "BFloat16": "bfloat16", "Float": "float32", "Double": "float64", "Bool": "bool",
}  # fmt: skip
_CLAUSES = 4


def operation_text(operation: Operation | Waiting, seq: int) -> str:
    """`all_reduce #217 of 2 int32`."""
    if operation.op is None:
        return f"collective #{seq}"
    dtype = _DTYPES.get(operation.dtype, operation.dtype)
    size = " ".join(str(part) for part in (operation.n, dtype) if part not in (None, ""))
    return f"{operation.op} #{seq}" + (f" of {size}" if size else "")


def innermost(pulse: Pulse | None) -> str | None:
    """The innermost frame outside the standard library: the line in the stack's own code that tells where it
    is.
    """
    if pulse is None or not pulse.at:
        return None
    return next((frame for frame in pulse.at if not _standard(frame)), pulse.at[0])


def _standard(frame: str) -> bool:
    top = frame.partition(":")[0].partition("/")[0].removesuffix(".py")
    return top in sys.stdlib_module_names or top.startswith("<frozen")


def group_text(group: GroupView) -> str:
    return f"group {group.name} ({len(group.ranks) + group.left_out} ranks)"


def hang_text(views: Sequence[RankView]) -> str:
    """Who waits where and who is absent, ranks in the same place in one clause."""
    order = {"waiting": 0, "absent": 1, "done": 2, "differs": 2, "missing": 3}
    clauses: dict[tuple[int, str], list[int]] = {}
    for view in views:
        if view.state != "done":
            clauses.setdefault((order[view.state], _hang_clause(view)), []).append(view.rank)
    return _join(sorted(clauses.items(), key=lambda item: item[0]))


def parts_text(views: Sequence[RankView], seq: int | None) -> str:
    """What each rank issued where they part, most ranks first; where that is not known, the counts."""
    clauses: dict[tuple[int, str], list[int]] = {}
    for view in views:
        clauses.setdefault((0, _difference_clause(view, seq)), []).append(view.rank)
    return _join(sorted(clauses.items(), key=lambda item: -len(item[1])))


def _join(clauses: Sequence[tuple[tuple[int, str], list[int]]]) -> str:
    texts = []
    for (_, clause), ranks in clauses[:_CLAUSES]:
        singular, _, plural = clause.partition("|")
        texts.append(f"{ranks_text(ranks)} {plural if len(ranks) > 1 and plural else singular}")
    if len(clauses) > _CLAUSES:
        texts.append(f"and {sum(len(ranks) for _, ranks in clauses[_CLAUSES:])} ranks more")
    return "; ".join(texts)


def _hang_clause(view: RankView) -> str:
    """`singular|plural` of what a rank does."""
    if view.state == "missing":
        return "has no ledger|have no ledger"
    if view.state == "waiting":
        at = f", issued at {view.issued_at}" if view.issued_at else ""
        silent = f" (silent: no pulse for {view.silent_s:.0f} s)" if view.silent_s is not None else ""
        return f"waits in {view.operation}{at}{silent}|wait in {view.operation}{at}{silent}"
    one, many = _whereabouts(view)
    return f"issued {view.issued} and {one}|issued {view.issued} and {many}"


def _whereabouts(view: RankView) -> tuple[str, str]:
    place = f" in {place_text(view.where)}" if view.where else ""
    if view.ended:
        return "has ended", "have ended"
    if view.silent_s is not None:
        silent = f"silent: no pulse for {view.silent_s:.0f} s"
        return f"is {silent}" + (f", last seen{place}" if place else ""), f"are {silent}"
    if view.waits_elsewhere:
        return f"waits {view.waits_elsewhere}", f"wait {view.waits_elsewhere}"
    if view.park == "file":
        return f"waits for a file{place}", f"wait for files{place}"
    if view.park == "sleep":
        return f"sleeps{place}", f"sleep{place}"
    if view.blocked:
        return f"waits for a {view.blocked}{place}", f"wait for a {view.blocked}{place}"
    word = "idle" if view.park else "still"
    return f"is {word}{place}", f"are {word}{place}"


def place_text(frame: str) -> str:
    """`package/module.py:505 serve` as `serve (package/module.py:505)`."""
    line, _, function = frame.partition(" ")
    return f"{function} ({line})" if function else line


def _difference_clause(view: RankView, seq: int | None) -> str:
    if view.state == "missing":
        return "has no ledger|have no ledger"
    if seq is None or view.operation is None:
        return f"issued {view.issued}"
    return f"issued {view.operation}"
