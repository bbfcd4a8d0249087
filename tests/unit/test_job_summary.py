"""What is printed of a run as it ends."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lockstep.experiments.stress.scenarios import Result, stress_arms
from lockstep.experiments.stress.summary import show_result, show_summary
from lockstep.run.supervise import Outcome
from lockstep.stacks.swift.spec import cpu_job
from lockstep.verdict import Kind, Verdict

ARM = stress_arms(cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes")))[0]
GOOD = Outcome(Verdict(Kind.IN_STEP, "2 processes, 8 steps"), "", 100.0, 2.5, 40.0, 12 << 30)


def shown(result: Result) -> str:
    console = Console(file=io.StringIO(), width=200)
    show_result(console, result)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_verdict_is_told_in_a_sentence() -> None:
    assert shown(Result(ARM, GOOD, "", Path("/runs"))) == "control: in step. 2 processes, 8 steps\n"


@pytest.mark.parametrize(
    ("kind", "told"), [(Kind.STALLED, False), (Kind.INCOMPLETE, False), (Kind.STUCK, True)]
)
def test_of_a_failed_job_the_failure_is_told_and_a_verdict_only_if_it_says_more(
    kind: Kind, told: bool
) -> None:
    failure = "the rollout server ended with status [1]"
    outcome = replace(GOOD, verdict=Verdict(kind, "nothing has moved"), failure=failure)
    text = shown(Result(ARM, outcome, failure, Path("/runs")))
    assert text.endswith(f"control did not end as it must: {failure}\n")
    assert ("nothing has moved" in text) is told


def test_a_run_without_an_outcome_has_its_row_too() -> None:
    console = Console(file=io.StringIO(), width=200)
    results = [Result(ARM, GOOD, "", Path("/runs")), Result(ARM, None, "no ledger", Path("/runs"))]
    show_summary(console, results, Path("/runs/summary.json"))
    assert isinstance(console.file, io.StringIO)
    _, _, first, second, last = console.file.getvalue().splitlines()
    assert first.split()[:5] == ["control", "none", "none", "in", "step"]
    assert second.split()[:5] == ["control", "none", "none", "-", "WRONG"]
    assert last == "details: /runs/summary.json"
