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
from lockstep.experiments.stress.scenarios import Result, check, run_arms
from lockstep.run.process_tree import StartError
from lockstep.run.supervise import JobError, Limits, Outcome
from lockstep.stacks.base import Arm
from lockstep.stacks.swift.arms import boundaries, stress_arms
from lockstep.stacks.swift.spec import JobSpec, cpu_job
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
    for name in ("check_again", "check_counted"):
        monkeypatch.setattr(arms, name, lambda *_: "")  # these runs leave no ledgers
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


def trainer_alone() -> list[ledgers.Proc]:
    procs = ledgers.trainers(2, generate=False)
    del procs[0].groups["weight-sync"]
    return procs


def test_a_run_in_step_in_which_a_group_has_counted_nothing_is_wrong(tmp_path: Path) -> None:
    whole = ledgers.verdict(ledgers.Job(ledgers.whole_job()), tmp_path / "whole")
    assert whole.kind is Kind.IN_STEP
    through = Outcome(whole, "", 1.0, 1.0, 1.0, 1)
    assert arms.check_counted(CONTROL.spec, through, tmp_path / "whole") == ""

    # Another release's groups, which the probe does not know: the trainer alone is seen, and is in step.
    trainer = ledgers.verdict(ledgers.Job(trainer_alone()), tmp_path / "trainer")
    assert trainer.kind is Kind.IN_STEP
    told = arms.check_counted(CONTROL.spec, replace(through, verdict=trainer), tmp_path / "trainer")
    assert "there is no group rollout.dp" in told
    assert "no group weight-sync" in told
    assert "trainer" not in told
    assert arms.check_counted(WITHOUT.spec, STUCK, tmp_path / "trainer") == "", "it is no claim of step"


def test_a_run_whose_groups_counted_nothing_fails_and_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run_job(spec: JobSpec, place: Path, *_: object) -> Outcome:
        verdict = ledgers.verdict(ledgers.Job(trainer_alone()), place)
        return replace(IN_STEP, verdict=replace(verdict, passed=IN_STEP.verdict.passed))

    monkeypatch.setattr(arms, "run_job", run_job)
    (result,) = run_arms([CONTROL], tmp_path, Limits(), lambda arm: lambda *_: None, lambda _: None)
    assert "there is no group rollout.dp" in result.wrong
    (row,) = json.loads((tmp_path / "summary.json").read_text())
    assert (row["verdict"], row["as_expected"]) == ("in step", False)


def on_gpus(
    monkeypatch: pytest.MonkeyPatch, folder: Path, arm: Arm, *ends: Outcome
) -> tuple[Result, dict[str, Any], list[Outcome]]:
    """The result of an arm of the CUDA job whose tries end so, its row, and the ends that were not needed."""
    queue = list(ends)
    monkeypatch.setattr(arms, "run_job", lambda *_: queue.pop(0))
    for name in ("check_again", "check_counted"):
        monkeypatch.setattr(arms, name, lambda *_: "")
    arm = replace(arm, spec=arm.spec.with_(device="cuda", cache=folder / "cache"))
    (result,) = run_arms([arm], folder, Limits(), lambda arm: lambda *_: None, lambda _: None)
    (row,) = json.loads((folder / "summary.json").read_text())
    return result, row, queue


RACE = stuck(cause="offline-wave-race")


def test_a_control_that_hangs_by_itself_is_a_finding_and_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result, row, _ = on_gpus(monkeypatch, tmp_path, CONTROL, RACE, IN_STEP)
    assert (result.wrong, row["as_expected"]) == ("", True)
    assert "hung by itself" in row["remarks"][0]
    assert result.folder.name == "control_again"
    assert row["ledgers"] == str(result.folder / "ledgers")
    twice, row, _ = on_gpus(monkeypatch, tmp_path, CONTROL, RACE, RACE)
    assert "expected the verdict 'in step'" in twice.wrong
    assert not row["as_expected"]


@pytest.mark.parametrize(
    ("arm", "end"),
    [(CONTROL, STUCK), (WITHOUT, RACE), (WITH, RACE), (CONTROL, replace(IN_STEP, failure="f"))],
)
def test_other_ends_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arm: Arm, end: Outcome
) -> None:
    result, row, left = on_gpus(monkeypatch, tmp_path, arm, end, IN_STEP)
    assert left == [IN_STEP]
    assert "remarks" not in row
    assert bool(result.wrong) is not (arm is WITHOUT)


FAILED_START = replace(IN_STEP, failure="the rollout server ended with status 1", start_seconds=0.0)


def test_a_start_that_failed_on_an_earlier_runs_compiled_code_is_tried_once_more_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = tmp_path / "cache" / "vllm" / "torch_compile_cache"
    compiled.mkdir(parents=True)
    kept = tmp_path / "cache" / "huggingface"
    kept.mkdir()
    result, row, _ = on_gpus(monkeypatch, tmp_path, CONTROL, FAILED_START, IN_STEP)
    assert result.wrong == ""
    assert "compiled code of earlier runs" in row["remarks"][0]
    assert not compiled.exists()
    assert kept.exists()
    # Now there is none: a start that fails is what it is.
    result, row, left = on_gpus(monkeypatch, tmp_path, CONTROL, FAILED_START, IN_STEP)
    assert "ended with status 1" in result.wrong
    assert (left, "remarks" in row) == ([IN_STEP], False)


def test_without_a_gpu_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told, summary, _ = run(monkeypatch, tmp_path, RACE, STUCK, IN_STEP)
    assert "got 'stuck'" in told[0].wrong
    assert "remarks" not in summary[0]
