"""The arms, what they must end as, and how a run that ended otherwise is told."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ledgers
import pytest

from lockstep.experiments.stress import scenarios as arms
from lockstep.experiments.stress.scenarios import Arm, Result, boundaries, check, run_arms, stress_arms
from lockstep.run.process_tree import StartError
from lockstep.run.supervise import JobError, Limits, Outcome
from lockstep.stacks.swift.spec import cpu_job
from lockstep.verdict import GroupView, Kind, Verdict

JOB = cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))
CONTROL, WITHOUT, WITH = stress_arms(JOB)
THROUGH = {"train begin": 1, "step": 8, "weight sync end": 9, "eval begin": 3, "eval end": 3, "save begin": 2,
           "save end": 2, "train end": 1}  # fmt: skip
IN_STEP = Outcome(
    Verdict(Kind.IN_STEP, "in step", passed={"trainer rank": THROUGH}), "", 100.0, 2.5, 40.0, 12 << 30
)
DP = GroupView("rollout.dp", (0, 1), "dp:0", "gloo")
STUCK = replace(IN_STEP, verdict=Verdict(Kind.STUCK, "stuck", group=DP, waiting=(0,), absent=(1,)))


def test_the_three_arms() -> None:
    assert [
        (a.spec.name, a.spec.fault is not None, a.spec.remedy, a.expected) for a in (CONTROL, WITHOUT, WITH)
    ] == [
        ("control", False, None, Kind.IN_STEP),
        ("without the fix", True, None, Kind.STUCK),
        ("with the fix", True, "independent ranks", Kind.IN_STEP),
    ]
    assert (WITHOUT.group, WITHOUT.waiting, WITHOUT.absent) == ("rollout.dp", (0,), (1,))
    assert dict(CONTROL.boundaries) == dict(WITH.boundaries)
    other = stress_arms(JOB, fault={"name": "late rank", "rank": 1, "generation": 1, "seconds": 1.0})[1]
    assert (other.waiting, other.absent) == ((1,), (0,))


def test_eval_and_save_happen_twice_and_at_different_steps() -> None:
    passed = dict(CONTROL.boundaries)
    assert passed["step"] == 8
    assert passed["eval begin"] == passed["eval end"] == 3
    assert passed["save begin"] == passed["save end"] == 2
    assert boundaries(8, 4, 4)["eval end"] == 2
    assert set(boundaries(1, 3, 4).values()) == {1}


@pytest.mark.parametrize(("arm", "outcome"), [(CONTROL, IN_STEP), (WITHOUT, STUCK), (WITH, IN_STEP)])
def test_as_it_must(arm: Arm, outcome: Outcome) -> None:
    assert check(arm, outcome) == ""


def without(name: str) -> Outcome:
    passed = {"trainer rank": {k: v for k, v in THROUGH.items() if k != name}}
    return replace(IN_STEP, verdict=replace(IN_STEP.verdict, passed=passed))


def stuck(**changes: Any) -> Outcome:
    return replace(STUCK, verdict=replace(STUCK.verdict, **changes))


@pytest.mark.parametrize(
    ("arm", "outcome", "told"),
    [
        (CONTROL, STUCK, "expected the verdict 'in step', got 'stuck': stuck"),
        (WITHOUT, IN_STEP, "expected the verdict 'stuck', got 'in step'"),
        (WITH, replace(IN_STEP, verdict=Verdict(Kind.INCOMPLETE, "no claim")), "got 'incomplete': no claim"),
        (WITHOUT, stuck(waiting=(1,)), "expected waiting (0,), got (1,)"),
        (WITHOUT, stuck(absent=()), "expected absent (1,), got ()"),
        (
            WITHOUT,
            stuck(group=replace(DP, name="rollout.unfinished")),
            "expected group rollout.dp, got rollout.unfinished",
        ),
        (WITHOUT, stuck(group=None), "expected group rollout.dp, got "),
        *[(CONTROL, without(name), f"expected {n} x {name!r}, passed 0") for name, n in CONTROL.boundaries],
        (CONTROL, replace(IN_STEP, leftovers=["process 7 is left"]), "process 7 is left"),
        (WITHOUT, replace(STUCK, leftovers=["shared memory /dev/shm/x is left"]), "/dev/shm/x"),
        (
            CONTROL,
            replace(IN_STEP, failure="the trainer ended with status 1"),
            "the trainer ended with status 1",
        ),
        (WITHOUT, replace(STUCK, failure="f", leftovers=["process 7"]), "f; process 7"),
    ],
)
def test_what_is_wrong_is_told(arm: Arm, outcome: Outcome, told: str) -> None:
    assert told in check(arm, outcome)


Ends = Callable[[], Outcome]


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *ends: Outcome | Exception
) -> tuple[list[Result], list[dict[str, Any]], Exception | None]:
    """Results as they were told, the summary on disk, and what was raised, of arms that end so."""
    queue = list(ends)

    def run_job(*_: object) -> Outcome:
        end = queue.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(arms, "run_job", run_job)
    monkeypatch.setattr(arms, "check_again", lambda *_: "")  # these runs leave no ledgers
    told: list[Result] = []
    raised = None
    try:
        run_arms([CONTROL, WITHOUT, WITH], folder, Limits(), lambda arm: lambda *_: None, told.append)
    except Exception as error:
        raised = error
    return told, json.loads((folder / "summary.json").read_text()), raised


def test_summary_of_three_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, summary, _ = run(monkeypatch, tmp_path, IN_STEP, STUCK, IN_STEP)
    assert [row["as_expected"] for row in summary] == [True] * 3
    row = summary[1]
    assert {k: row[k] for k in ("name", "remedy", "expected", "verdict", "group", "waiting", "absent")} == {
        "name": "without the fix", "remedy": None, "expected": "stuck", "verdict": "stuck",
        "group": "rollout.dp", "waiting": [0], "absent": [1],
    }  # fmt: skip
    assert row["fault"]["name"] == "late rank"
    assert row["seconds_to_verdict"] == 2.5
    assert summary[0]["boundaries"] == {"trainer rank": THROUGH}
    assert Path(row["ledgers"]).parts[-2:] == ("without_the_fix", "ledgers")
    assert not list(tmp_path.glob("*.part"))


def test_an_arm_without_a_verdict_does_not_keep_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, summary, raised = run(monkeypatch, tmp_path, IN_STEP, JobError("a ledger cannot be read"), IN_STEP)
    assert raised is None
    assert [result.wrong for result in told] == ["", "a ledger cannot be read", ""]
    assert [row["as_expected"] for row in summary] == [True, False, True]
    assert "verdict" not in summary[1]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), StartError("swift did not start")]
)
def test_what_every_arm_would_meet_ends_the_runs_and_is_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    _, summary, raised = run(monkeypatch, tmp_path, IN_STEP, error)
    assert raised is error
    assert [(row["name"], row["wrong"]) for row in summary] == [
        ("control", ""),
        ("without the fix", str(error)),
    ]


def test_an_old_summary_is_not_taken_for_a_new_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(monkeypatch, tmp_path, IN_STEP, STUCK, IN_STEP)
    _, summary, raised = run(monkeypatch, tmp_path, RuntimeError("a bug"))
    assert summary == []
    assert isinstance(raised, RuntimeError)


def test_the_ledgers_alone_must_give_the_same_verdict(tmp_path: Path) -> None:
    verdict = ledgers.verdict(ledgers.Job(ledgers.incident()), tmp_path)
    assert verdict.kind is Kind.STUCK
    outcome = Outcome(verdict, "", 1.0, 1.0, 1.0, 1)
    assert arms.check_again(outcome, tmp_path) == ""
    other = arms.check_again(replace(outcome, verdict=replace(verdict, kind=Kind.IN_STEP)), tmp_path)
    assert "another verdict, 'stuck'" in other
