"""`lockstep run`: checks what the runs need, makes the model, runs the arms and shows what came of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lockstep.fixtures.checkpoint import CheckpointError, ensure_checkpoint
from lockstep.fixtures.shapes import DatasetError, check_dataset
from lockstep.job.arms import Arm, Result, run_arms, stress_arms
from lockstep.job.home import HomeInUse, home
from lockstep.job.processes import StartError, terminate_as_exit
from lockstep.job.spec import JobSpec, cpu_job
from lockstep.job.supervise import Limits
from lockstep.report.progress import ProgressLine
from lockstep.report.summary import show_result, show_summary
from lockstep.stack import StackError, check_stack, complete_cpu_build

DATASETS = Path("datasets/shapes")
LOG_WIDTH = 110
"""Characters a line where nobody's terminal sets it."""
LEAST_FREE_GIB = 2.0
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it; after SIGTERM and SIGHUP it is 128 and the signal's number too."""


class SetupError(RuntimeError):
    """The runs cannot begin; the message says what is missing."""


def run(device: str, *, steps: int, out: Path, only: Sequence[str]) -> list[Result]:
    """Runs the arms named in `only` (all if none) and returns how they ended.

    Raises SetupError when they cannot be run here: before anything is started, or when the disk is full. Raises SystemExit when it
    is interrupted.
    """
    console = Console()
    if not console.is_terminal:
        console.width = LOG_WIDTH
    job = prepare(device, steps=steps, out=out.resolve())
    arms = stress_arms(job)
    if unknown := set(only) - {arm.spec.name for arm in arms}:
        raise SetupError(f"no arm is named {', '.join(sorted(unknown))}; there are: {', '.join(a.spec.name for a in arms)}")
    arms = [arm for arm in arms if not only or arm.spec.name in only]
    lines: list[ProgressLine] = []

    def progress(arm: Arm) -> ProgressLine:
        lines.append(ProgressLine(arm.spec.name))
        return lines[-1]

    def done(result: Result) -> None:
        lines[-1].close()
        show_result(console, result)

    for name, instead in job.instead.items():
        console.print(f"not as in the incident on this device: {name}: {instead}", style="dim")
    try:
        with home(out.resolve()), terminate_as_exit():
            results = run_arms(arms, out.resolve(), Limits(), progress, done)
    except (StartError, HomeInUse, OSError) as error:
        raise SetupError(_disk(error, out)) from error
    except (KeyboardInterrupt, SystemExit) as stop:
        for line in lines[-1:]:
            line.close()
        console.print(f"stopped: every process of the job has been ended; what was recorded is in {out}", highlight=False)
        raise SystemExit(stop.code if isinstance(stop, SystemExit) else INTERRUPTED) from stop
    show_summary(console, results, out / "summary.json")
    return results


def prepare(device: str, *, steps: int, out: Path) -> JobSpec:
    """The job's spec with everything that it names in place: the pinned stack, the data, the model, room on the disk."""
    if device != "cpu":
        raise SetupError(f"no such device: {device!r}; there is: cpu")
    try:
        check_stack(device)
        complete_cpu_build()
        out.mkdir(parents=True, exist_ok=True)
        _check_space(out)
        datasets = DATASETS.resolve()
        for name in ("train.jsonl", "val.jsonl"):
            check_dataset(datasets / name)
        model = ensure_checkpoint(out.parent / "models")
    except (StackError, DatasetError, CheckpointError) as error:
        raise SetupError(str(error)) from error
    except OSError as error:
        raise SetupError(_disk(error, out)) from error
    job = cpu_job("job", model=model, datasets=datasets)
    return job.with_(cache=out.parent / "cache", trainer={**job.trainer, "max_steps": steps})


def _check_space(folder: Path) -> None:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize / 2**30
    if free < LEAST_FREE_GIB:
        raise SetupError(f"{folder}: {free:.1f} GiB are free on this disk; the runs need {LEAST_FREE_GIB:.0f} GiB")


def _disk(error: Exception, out: Path) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or out}: the disk is full"
    return str(error)
