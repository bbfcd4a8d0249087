"""The arms of `cpu_stress`: the same job as it is, with the fault, and with the fault and the cure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.record import read_directory
from lockstep.run.process_tree import StartError
from lockstep.run.run_lock import STAMP
from lockstep.run.summary_file import write_rows
from lockstep.run.supervise import JobError, Limits, Outcome, Progress, run_job
from lockstep.stacks.swift.outside_faults import FromOutside
from lockstep.stacks.swift.spec import JobSpec
from lockstep.verdict import Kind, judge

LATE_RANK: dict[str, Any] = {"name": "late rank", "rank": 0, "generation": 3, "seconds": 6.0}


@dataclass(frozen=True)
class Arm:
    """One run and how it must end."""

    spec: JobSpec
    expected: Kind
    group: str = ""
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    boundaries: tuple[tuple[str, int], ...] = ()
    """Boundaries that every trainer rank must have passed at least so often."""
    outside: Callable[[Path], FromOutside] | None = None
    """From the run's folder: who does the arm's fault, where no process of the job does."""


@dataclass(frozen=True)
class Result:
    arm: Arm
    outcome: Outcome | None
    wrong: str
    """In what the run ended otherwise than it must; empty if in nothing."""
    folder: Path


def stress_arms(
    job: JobSpec, fault: dict[str, Any] | None = None, remedy: str = "independent ranks"
) -> list[Arm]:
    """Control, without the fix, with the fix."""
    fault = fault or LATE_RANK
    steps = int(str(job.trainer["max_steps"]))
    through = tuple(
        boundaries(steps, int(str(job.trainer["eval_steps"])), int(str(job.trainer["save_steps"]))).items()
    )
    late = int(fault["rank"])
    ranks = range(job.layout.data_parallel)
    return [
        Arm(job.with_(name="control"), Kind.IN_STEP, boundaries=through),
        Arm(
            job.with_(name="without the fix", fault=fault),
            Kind.STUCK,
            group="rollout.dp",
            waiting=(late,),
            absent=tuple(rank for rank in ranks if rank != late),
        ),
        Arm(job.with_(name="with the fix", fault=fault, remedy=remedy), Kind.IN_STEP, boundaries=through),
    ]


def boundaries(steps: int, eval_steps: int, save_steps: int) -> dict[str, int]:
    """How often a trainer rank passes what. ms-swift evaluates and saves once more at the last step
    (3.10.3)."""
    evals = steps // eval_steps + (steps % eval_steps > 0)
    saves = steps // save_steps + (steps % save_steps > 0)
    return {"train begin": 1, "step": steps, "weight sync end": steps, "eval begin": evals, "eval end": evals,
            "save begin": saves, "save end": saves, "train end": 1}  # fmt: skip


def run_arms(
    arms: Sequence[Arm],
    folder: Path,
    limits: Limits,
    progress: Callable[[Arm], Progress],
    done: Callable[[Result], None],
) -> list[Result]:
    """Runs them one after another, each in a new folder below `folder`, and writes `folder/summary.json`
    after each.

    An arm that cannot be run to a verdict is a result too. OSError and StartError, which every further arm
    would meet as well, are raised when the arm has been written down.
    """
    results: list[Result] = []
    # Of an earlier run nothing may be left to be taken for this one's.
    whole = {
        "begin": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "planned": [arm.spec.name for arm in arms],
    }
    write_summary(results, folder / "summary.json", whole)
    home = folder / time.strftime(STAMP)
    for arm in arms:
        place = home / arm.spec.name.replace(" ", "_")
        fatal: Exception | None = None
        try:
            with arm.outside(place) if arm.outside else nullcontext():
                outcome = run_job(arm.spec, place, limits, progress(arm))
            wrong = check(arm, outcome) or check_again(outcome, place)
            result = Result(arm, outcome, wrong, place)
        except JobError as error:
            result = Result(arm, None, str(error), place)
        except (StartError, OSError) as error:
            result, fatal = Result(arm, None, str(error), place), error
        results.append(result)
        try:
            write_summary(results, folder / "summary.json", whole)
        except OSError as error:
            fatal = fatal or error
        done(result)
        if fatal is not None:
            raise fatal
    return results


def check(arm: Arm, outcome: Outcome) -> str:
    """What is wrong with how the arm ended, in words; empty if nothing is."""
    verdict = outcome.verdict
    wrong: list[str] = []
    if outcome.failure:
        return "; ".join([outcome.failure, *outcome.leftovers])
    if verdict.kind is not arm.expected:
        wrong.append(
            f"expected the verdict {arm.expected.value!r}, got {verdict.kind.value!r}: {verdict.sentence}"
        )
    elif arm.expected is Kind.STUCK:
        for what, want, got in (
            ("group", arm.group, verdict.group.name if verdict.group else ""),
            ("waiting", arm.waiting, tuple(verdict.waiting)),
            ("absent", arm.absent, tuple(verdict.absent)),
        ):
            if want != got:
                wrong.append(f"expected {what} {want}, got {got}")
    passed = verdict.passed.get("trainer rank", {})
    for name, times in arm.boundaries:
        if passed.get(name, 0) < times:
            wrong.append(f"expected {times} x {name!r}, passed {passed.get(name, 0)}")
    wrong.extend(outcome.leftovers)
    return "; ".join(wrong)


def check_again(outcome: Outcome, place: Path) -> str:
    """What the verdict from the ledgers that the run has left says otherwise; empty if it says the same.

    A run that ended as it must is only worth its ledgers if anyone can come to the same verdict by them.
    """
    again = judge(read_directory(place))
    if (again.kind, again.waiting, again.absent) == (
        outcome.verdict.kind,
        outcome.verdict.waiting,
        outcome.verdict.absent,
    ):
        return ""
    return f"its ledgers alone give another verdict, {again.kind.value!r}: {again.sentence}"


def write_summary(results: Sequence[Result], path: Path, whole: Mapping[str, Any] | None = None) -> None:
    """One JSON object per run (see README) with the fields of `whole`, written whole or not at all."""
    write_rows(({**_summary(result), **(whole or {})} for result in results), path)


def _summary(result: Result) -> dict[str, Any]:
    spec, outcome = result.arm.spec, result.outcome
    row: dict[str, Any] = {
        "name": spec.name,
        "fault": spec.fault,
        "remedy": spec.remedy,
        "expected": result.arm.expected.value,
        "as_expected": not result.wrong,
        "wrong": result.wrong,
        "ledgers": str(result.folder / "ledgers"),
    }
    if outcome is not None:
        verdict = outcome.verdict
        row |= {
            "verdict": verdict.kind.value,
            "sentence": verdict.sentence,
            "group": verdict.group.name if verdict.group else "",
            "waiting": list(verdict.waiting),
            "absent": list(verdict.absent),
            "boundaries": verdict.passed,
            "seconds_to_verdict": round(outcome.seconds_to_verdict, 1),
            "seconds": round(outcome.seconds, 1),
            "start_seconds": round(outcome.start_seconds, 1),
            "peak_gib": round(outcome.peak_memory / 2**30, 1),
        }
    return row
