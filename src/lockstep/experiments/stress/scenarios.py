"""Runs the arms of a stack one after another and compares how each ends with how it must."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.record import read_directory
from lockstep.run import scratch
from lockstep.run.counted import silent
from lockstep.run.process_tree import StartError
from lockstep.run.run_lock import new_run
from lockstep.run.summary_file import write_rows
from lockstep.run.supervise import JobError, Limits, Outcome, Progress, run_job
from lockstep.stacks.base import Arm, Job
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind

SUMMARY_FIELDS = ("name", "expected", "as_expected", "ledgers")
"""What every row of the runs' summary.json has."""


@dataclass(frozen=True)
class Result:
    arm: Arm
    outcome: Outcome | None
    wrong: str
    """In what the run ended otherwise than it must; empty if in nothing."""
    folder: Path
    remarks: tuple[str, ...] = ()
    """What a person must know of it besides: a first try that says something, and why it was tried again."""


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
    home = new_run(folder)
    for arm in arms:
        place = home / arm.spec.name.replace(" ", "_")
        fatal: Exception | None = None
        try:
            outcome, place, remarks = _try(arm, place, limits, progress)
            wrong = check(arm, outcome) or check_again(outcome, place)
            result = Result(arm, outcome, wrong or check_counted(arm.spec, outcome, place), place, remarks)
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


def _try(
    arm: Arm, place: Path, limits: Limits, progress: Callable[[Arm], Progress]
) -> tuple[Outcome, Path, tuple[str, ...]]:
    """How the arm ended, in which folder, and remarks. On GPUs an arm is tried once more where its first try
    says something else than what the arm is there to show."""
    cache, folders = arm.spec.cache, arm.spec.stack.folders
    compiled = scratch.has_compiled(cache, folders)
    remarks: tuple[str, ...] = ()
    for last in (False, True):
        with arm.outside(place) if arm.outside else nullcontext():
            outcome = run_job(arm.spec, place, limits, progress(arm))
        if last or arm.spec.device != "cuda":
            break
        if hung_by_itself(arm, outcome):
            remarks = (
                "a finding: the job hung by itself, with nothing done to it, as in the incident: "
                f"{outcome.verdict.sentence} (its ledgers: {place / 'ledgers'}); tried once more",
            )
        elif cache is not None and compiled and outcome.failure and not outcome.start_seconds:
            scratch.drop_compiled(cache, folders)
            remarks = (
                f"the {arm.spec.stack.service} did not start ({outcome.failure}); compiled code of earlier "
                f"runs, which may be unfinished where one was ended, has been removed from {cache}; tried "
                "once more",
            )
        else:
            break
        place = place.with_name(f"{place.name}_again")
    return outcome, place, remarks


def hung_by_itself(arm: Arm, outcome: Outcome) -> bool:
    """Whether the stack's known hang was met by a run that does nothing to the job, and has no remedy."""
    untouched = arm.spec.fault is None and arm.outside is None and arm.spec.remedy is None
    return (
        untouched
        and outcome.verdict.kind is Kind.STUCK
        and outcome.verdict.cause == arm.spec.stack.known_hang
    )


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
    passed = verdict.passed.get(f"{arm.spec.stack.main} rank", {})
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


def check_counted(spec: Job, outcome: Outcome, place: Path) -> str:
    """Which groups that `in step` must speak of have counted nothing; empty if none, or no such verdict."""
    if outcome.verdict.kind is not Kind.IN_STEP:
        return ""
    return silent(spec.groups(), read_directory(place))


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
    if result.remarks:
        row["remarks"] = list(result.remarks)
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
