"""Runs the job with the late-rank fault under each remedy, a control before them, and says what became of
each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.experiments.stress.scenarios import check_counted
from lockstep.record import read_directory
from lockstep.remedies.model import Tried
from lockstep.run.run_lock import new_run
from lockstep.run.summary_file import Row, read_rows, write_rows
from lockstep.run.supervise import JobError, Limits, Outcome, Progress, run_job
from lockstep.stacks.base import Job, Trial
from lockstep.verdict import Kind

CONTROL = "control"

FIELDS = ("remedy", "outcome", "as_expected")
"""What every row has."""


def run_remedies(
    job: Job,
    trial: Trial,
    folder: Path,
    remedies: Sequence[Tried],
    progress: Callable[[str], Progress],
    done: Callable[[Row], None],
) -> list[Row]:
    """Runs a control and then `remedies`, each in a new folder. Rows of earlier runs of other remedies are
    kept in `folder/summary.json`, with the speed against the control of their own run. Raises RowsError for a
    summary that cannot be read, before anything is run."""
    job = job.sized(trial.steps, trial.steps, trial.steps)
    summary = folder / "summary.json"
    rows = read_rows(summary, FIELDS)
    run = new_run(folder)
    runs: list[tuple[str, Job, Tried | None]] = [(CONTROL, job, None)]
    runs += [
        (remedy.name, trial.apply(job, remedy).with_(fault=dict(trial.fault)), remedy) for remedy in remedies
    ]
    control: float | None = None
    for name, spec, remedy in runs:
        home = run / name.replace(" ", "_")
        spec = spec.with_(name=name)
        try:
            outcome = run_job(spec, home, Limits(), progress(name))
            row = _row(name, remedy, trial, outcome, home, spec)
        except JobError as error:
            row = {"remedy": name, "outcome": "not run", "why": str(error), "as_expected": False}
        rate = row.get("steps_per_second")
        control = rate if remedy is None else control
        row["against_control"] = round(rate / control, 2) if rate and control else None
        rows[name] = {**row, "run": run.name}
        write_rows(rows.values(), summary)
        done(rows[name])
    return list(rows.values())


def _row(name: str, remedy: Tried | None, trial: Trial, outcome: Outcome, home: Path, spec: Job) -> Row:
    silent = check_counted(spec, outcome, home)
    verdict = outcome.verdict
    late = any(trial.happened in log.read_text(errors="replace") for log in (home / "logs").glob("*.log"))
    paused = trial.fault["seconds"] if late else 0.0
    row: Row = {
        "remedy": name,
        "outcome": _outcome(outcome, late, remedy),
        "verdict": verdict.kind.value,
        "group": verdict.group.name if verdict.group else "",
        "waiting": list(verdict.waiting),
        "absent": list(verdict.absent),
        "sentence": verdict.sentence,
        "failure": outcome.failure,
        "fault_happened": late,
        "seconds_to_verdict": round(outcome.seconds_to_verdict, 1),
        "seconds": round(outcome.seconds, 1),
        "peak_gib": round(outcome.peak_memory / 2**30, 1),
        "steps_per_second": _rate(home, spec.stack.main, trial.steps, paused),
        "ledgers": str(home / "ledgers"),
    }
    wanted = "through" if remedy is None or remedy.helps else "hangs"
    row["as_expected"] = row["outcome"] == wanted and not outcome.leftovers and not silent
    row["why"] = "; ".join(filter(None, [outcome.failure, silent, *outcome.leftovers]))
    return row


def _outcome(outcome: Outcome, late: bool, remedy: Tried | None) -> str:
    """`hangs` and `through` are the two that say something about a remedy."""
    if outcome.verdict.kind is Kind.STUCK:
        return "hangs"
    if outcome.failure or outcome.verdict.kind is not Kind.IN_STEP:
        return "fails"
    return "through" if late or remedy is None else "fault did not happen"


def _rate(home: Path, main: str, wanted: int, paused: float) -> float | None:
    """Return the optimizer steps per second of the main side's rank 0, from `train begin` to its last step,
    less the fault's own pause; None where it did not reach the last."""
    times: dict[str, list[float]] = {}
    for ledger in read_directory(home):
        if ledger.process and (ledger.process.side, ledger.process.role, ledger.process.rank) == (
            main,
            "rank",
            0,
        ):
            for boundary in ledger.boundaries:
                times.setdefault(boundary.name, []).append(boundary.t)
    steps = times.get("step", [])
    if len(steps) < wanted or not times.get("train begin"):
        return None
    return round(len(steps) / (steps[-1] - times["train begin"][0] - paused), 4)
