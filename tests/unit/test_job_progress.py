"""The line for the person who waits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from ledgers import Job, whole_job

from lockstep.record import LedgerTail
from lockstep.report.progress import EVERY_S, LEAST_S, ProgressLine, describe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tail(tmp_path: Path) -> LedgerTail:
    Job(whole_job(2)).write(tmp_path)
    tail = LedgerTail(tmp_path)
    tail.refresh()
    return tail


def test_it_tells_the_last_boundary_of_the_slowest_process(tail: LedgerTail) -> None:
    assert describe([], healthy=False) == "rollout: starting | trainer: loading"
    assert describe([], healthy=True) == "rollout: ready | trainer: loading"
    assert describe(tail.ledgers, healthy=True).endswith("| trainer: step 2, train end 1")
    behind = next(x for x in tail.ledgers if x.label == "trainer rank 1")
    del behind.boundaries[3:]
    assert describe(tail.ledgers, healthy=True).endswith(f", {behind.boundaries[2]}")


def test_on_a_terminal_one_line_is_rewritten_and_never_wraps(
    tail: LedgerTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    line = ProgressLine("control", out)
    line(tail, 1.0, True)
    line(tail, 1.5, True)
    line.close()
    first, second, last = out.getvalue().split("\r\x1b[K")[1:]
    assert first.startswith("control    1 s  rollout: ")
    assert len(first) == len(second) == 39
    assert last == ""
    assert "\n" not in out.getvalue()


def test_elsewhere_lines_come_with_what_is_new_but_not_too_often(tail: LedgerTail) -> None:
    out = io.StringIO()
    line = ProgressLine("control", out)
    empty = LedgerTail(Path("/nowhere"))
    for age, what in [(0, empty), (1, tail), (LEAST_S, tail), (LEAST_S + 5, tail), (LEAST_S + EVERY_S, tail)]:
        line(what, float(age), True)
    line.close()
    told = [text.split()[1] for text in out.getvalue().splitlines()]
    assert told == ["0", f"{LEAST_S:.0f}", f"{LEAST_S + EVERY_S:.0f}"]
