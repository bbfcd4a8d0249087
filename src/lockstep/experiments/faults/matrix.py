"""Runs the job with one fault after another and says for each whether the verdict was right."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from lockstep.experiments.stress.scenarios import check_again, check_counted
from lockstep.record import LedgerError, read_directory
from lockstep.run.run_lock import mark, new_run, remove
from lockstep.run.summary_file import Row, read_rows, write_rows
from lockstep.run.supervise import JobError, Limits, Progress, run_job
from lockstep.stacks.base import Expected, Fault, Job
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind, Verdict

SIZES = {"steps": 3, "eval_steps": 2, "save_steps": 3}
"""Three steps, an evaluation after the second and at the end, a checkpoint at the end."""

FIELDS = ("fault", "verdict", "wrong")
"""What every row has."""


def run_matrix(
    job: Job,
    folder: Path,
    faults: Sequence[Fault],
    progress: Callable[[Fault], Progress],
    done: Callable[[Fault, Row], None],
) -> list[Row]:
    """Runs `faults`, each in a new folder; keeps the rows of earlier runs of others in
    `folder/summary.json`, and the ledgers of every row in `folder/ledgers`. Raises RowsError for a summary
    that cannot be read, before anything is run.
    """
    job = job.sized(**SIZES)
    rows = known_rows(folder)
    run = new_run(folder)
    for fault in faults:
        home = run / fault.name.replace(" ", "_")
        try:
            rows[fault.name] = _run(fault, job, home, progress(fault))
        except JobError as error:
            rows[fault.name] = {"fault": fault.name, "verdict": "-", "wrong": str(error)}
        rows[fault.name]["ledgers"] = str(_keep(home / "ledgers", folder / "ledgers" / home.name))
        _save(rows, folder, job.stack.faults)
        done(fault, rows[fault.name])
    return list(rows.values())


def judge_again(folder: Path, faults: Sequence[Fault], done: Callable[[Fault, Row], None]) -> list[Row]:
    """The verdicts of `faults` anew from the ledgers that their runs have left; a row without stays as it is.

    Raises LedgerError, also if there are no earlier runs, and RowsError.
    """
    rows = known_rows(folder)
    if not rows:
        raise LedgerError(f"{folder}: no earlier runs to judge again, expected their summary.json")
    for fault in faults:
        row = rows.get(fault.name)
        if row is not None and "seconds" in row and Path(row["ledgers"]).is_dir():
            row |= _judged(fault, judge(read_directory(row["ledgers"])), row["leftovers"])
            done(fault, row)
    write_rows(rows.values(), folder / "summary.json")
    return list(rows.values())


def _keep(ledgers: Path, place: Path) -> Path:
    """A copy that stays when the run's folder is removed, in the place of that of an earlier run; beside it
    where that does not bear the mark."""
    if not ledgers.exists():
        return place
    name, number = place.name, 1
    while not remove(place):
        number += 1
        place = place.with_name(f"{name}-{number}")
    shutil.copytree(ledgers, place)
    return mark(place)


def known_rows(folder: Path) -> dict[str, Row]:
    """Rows of earlier runs by fault; none where there were none. Raises RowsError, OSError."""
    return read_rows(folder / "summary.json", FIELDS)


def _save(rows: dict[str, Row], folder: Path, faults: Sequence[Fault]) -> None:
    write_rows((rows[known.name] for known in faults if known.name in rows), folder / "summary.json")


def _run(fault: Fault, job: Job, home: Path, progress: Progress) -> Row:
    spec = fault.spec(job, home.with_name(home.name + "-made"))
    with fault.outside(home) if fault.outside else nullcontext() as watch:
        outcome = run_job(spec, home, Limits(), progress)
    row = _judged(fault, outcome.verdict, outcome.leftovers)
    if not row["wrong"]:
        row["wrong"] = check_again(outcome, home) or check_counted(spec, outcome, home)
    return {
        **row,
        "seconds_to_verdict": round(outcome.seconds_to_verdict, 1),
        "seconds": round(outcome.seconds, 1),
        "failure": outcome.failure,
        "leftovers": outcome.leftovers,
        "done_from_outside": watch.did if watch else [],
    }


def _judged(fault: Fault, verdict: Verdict, leftovers: Sequence[str]) -> Row:
    return {
        "fault": fault.name,
        "side": fault.side,
        "verdict": verdict.kind.value,
        "expected": fault.expected.kinds,
        "group": verdict.group.name if verdict.group else "",
        "named": named(verdict),
        "agreed": str(verdict.agreed) if verdict.agreed else "",
        "cause": verdict.cause,
        "evidence": list(verdict.evidence),
        "sentence": verdict.sentence,
        "wrong": "; ".join([*wrong(fault.expected, verdict), *leftovers]),
    }


def named(verdict: Verdict) -> str:
    """The rank or process that the verdict points at."""
    if verdict.lost:
        return f"{verdict.lost} gone"
    if verdict.absent:
        return f"rank {', '.join(map(str, verdict.absent))} absent"
    if verdict.odd:
        return f"rank {', '.join(map(str, verdict.odd))} differs"
    told = [f"rank {view.rank}: {view.operation}" for view in verdict.ranks if view.operation]
    return "; ".join(told)


def wrong(expected: Expected, verdict: Verdict) -> list[str]:
    """In what a verdict is not the expected one."""
    found = []
    if verdict.kind not in (expected.kind, expected.or_kind):
        found.append(f"verdict: expected {expected.kinds}, got {verdict.kind.value}")
    for what, want, got in (
        ("group", expected.group, verdict.group.name.partition("#")[0] if verdict.group else ""),
        ("process gone", expected.lost, verdict.lost),
        ("cause", expected.cause, verdict.cause),
    ):
        if want != got and (want or what != "group"):
            found.append(f"{what}: expected {want or 'none'}, got {got or 'none'}")
    agreed = str(verdict.agreed) if verdict.agreed else "none"
    if expected.agreed and not agreed.startswith(expected.agreed):
        found.append(f"agreed last: expected {expected.agreed}, got {agreed}")
    if expected.rank is not None and not _points_at(verdict, expected.rank, expected.operation):
        operation = f" with {expected.operation}" if expected.operation else ""
        found.append(f"rank: expected {expected.rank}{operation}, got {named(verdict) or 'none'}")
    return found


def _points_at(verdict: Verdict, rank: int, operation: str) -> bool:
    """Of two ranks that issued different things neither is the odd one: then both operations must be told."""
    if verdict.kind is Kind.STUCK and verdict.absent and not operation:
        return verdict.absent == (rank,)
    issued = {view.rank: view.operation for view in verdict.ranks}
    mine = issued.get(rank) or ""
    if verdict.odd:
        return verdict.odd == (rank,) and mine.startswith(operation)
    others = {what for other, what in issued.items() if other != rank}
    return bool(mine) and mine.startswith(operation) and None not in others and mine not in others
