"""`lockstep run`: checks what the runs need, makes the model, runs the arms and shows what came of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep import devices, stacks
from lockstep.experiments.stress.dry_run import show_commands
from lockstep.experiments.stress.scenarios import SUMMARY_FIELDS, Result, run_arms
from lockstep.experiments.stress.summary import show_result, show_summary
from lockstep.report.console import Console
from lockstep.report.progress import ProgressLine
from lockstep.run.process_tree import StartError, terminate_as_exit
from lockstep.run.run_lock import HomeInUse, home, left_text
from lockstep.run.summary_file import RowsError, read_rows
from lockstep.run.supervise import FULL, Limits
from lockstep.stacks.base import Arm, Choice, Job, Request, Stack, StackError

CHOICE_LEFT = Choice()
LOG_WIDTH = 110
"""Characters a line where nobody's terminal sets it."""
LEAST_FREE_GIB = 2.0
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it; after SIGTERM and SIGHUP it is 128 and the signal's number
too."""


class SetupError(RuntimeError):
    """The runs cannot begin; the message says what is missing."""


class MachineError(SetupError):
    """The runs cannot begin on this machine, whatever the packages are."""


def run(
    device: str,
    *,
    steps: int,
    out: Path,
    only: Sequence[str],
    options: Choice = CHOICE_LEFT,
    stack: str = stacks.DEFAULT,
) -> list[Result]:
    """Runs the arms named in `only` (all if none) on `device`, `cpu` or `cuda`, and returns how they ended.

    Raises SetupError when they cannot be run here: before anything is started, or when the disk is full.
    Raises SystemExit when it is interrupted.
    """
    console = Console()
    if not console.is_terminal:
        console.width = LOG_WIDTH
    try:
        read_rows(out / "summary.json", SUMMARY_FIELDS)  # what is not ours is not written over
    except (RowsError, OSError) as error:
        raise SetupError(str(error)) from error
    job = prepare(device, steps=steps, out=out.resolve(), options=options, only=only, stack=stack)
    arms = choose_arms(job, only)
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
        with home(out.resolve()) as left, terminate_as_exit():
            tell_left(console, left)
            results = run_arms(arms, out.resolve(), limits(options), progress, done)
    except (StartError, HomeInUse, OSError) as error:
        raise SetupError(_disk(error, out)) from error
    except (KeyboardInterrupt, SystemExit) as stop:
        for line in lines[-1:]:
            line.close()
        console.print(
            f"stopped: every process of the job has been ended; what was recorded is in {out}",
        )
        raise SystemExit(stop.code if isinstance(stop, SystemExit) else INTERRUPTED) from stop
    show_summary(console, results, out / "summary.json")
    return results


def limits(options: Choice) -> Limits:
    """A real model's weights are loaded, moved and saved for minutes, in which nothing is counted."""
    return Limits() if options.model is None else Limits(stall_s=600.0, start_s=1800.0, total_s=4 * 3600.0)


def tell_left(console: Console, left: list[Path]) -> None:
    """Says which folders an older Lockstep may have left, if any."""
    if text := left_text(left):
        console.print(text, style="dim")


def dry_run(
    device: str,
    *,
    steps: int,
    out: Path,
    only: Sequence[str],
    options: Choice = CHOICE_LEFT,
    stack: str = stacks.DEFAULT,
) -> None:
    """Shows what `run` would start. Needs neither the stack nor a GPU, and starts and writes nothing. Raises
    SetupError."""
    chosen = find_stack(stack)
    _check_choice(chosen, device, options, only)
    try:
        job = chosen.plan(Request(device, steps, out.resolve(), options))
    except devices.DeviceError as error:
        raise SetupError(str(error)) from error
    show_commands(choose_arms(job, only), out.resolve())


def prepare(
    device: str,
    *,
    steps: int,
    out: Path,
    options: Choice = CHOICE_LEFT,
    instead: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
    stack: str = stacks.DEFAULT,
    alone: bool = False,
) -> Job:
    """The job's spec with everything that it names in place: the GPUs, the pinned stack (but for the releases
    that are wanted `instead`), the data, the model, room on the disk. Before all that the names of the arms
    that will be chosen of it, `only`, are checked. `alone`: the services will run without the main command.
    Raises SetupError."""
    chosen = find_stack(stack)
    _check_choice(chosen, device, options, only)
    request = Request(device, steps, out, options, instead or {}, alone)
    try:
        chosen.check(request)
        out.mkdir(parents=True, exist_ok=True)
        _check_space(out)
        return chosen.prepare(request)
    except devices.DeviceError as error:
        raise MachineError(str(error)) from error
    except StackError as error:
        raise SetupError(str(error)) from error
    except OSError as error:
        raise MachineError(_disk(error, out)) from error


def find_stack(name: str) -> Stack:
    """Raises SetupError for a name that no stack has."""
    try:
        return stacks.get(name)
    except KeyError:
        known = ", ".join(stacks.names())
        raise SetupError(f"no stack is named {name!r}; there are: {known}") from None


def choose_arms(job: Job, only: Sequence[str]) -> list[Arm]:
    """Those of the job's arms that `only` names, all if none. Raises SetupError."""
    arms = job.stack.arms(job)
    if unknown := set(only) - {arm.spec.name for arm in arms}:
        raise SetupError(
            f"no arm is named {', '.join(sorted(unknown))}; there are: {', '.join(a.spec.name for a in arms)}"
        )
    return [arm for arm in arms if not only or arm.spec.name in only]


def _check_choice(stack: Stack, device: str, options: Choice, only: Sequence[str]) -> None:
    if device not in ("cpu", "cuda"):
        raise SetupError(f"no such device: {device!r}; there are: cpu, cuda")
    if device == "cpu" and options != CHOICE_LEFT:
        raise SetupError("--gpus, --rollout-gpus and --model are for --device cuda")
    if options.model is not None and not (options.model / "config.json").is_file():
        raise SetupError(f"{options.model}: expected the folder of a checkpoint, with its config.json")
    # The arms have the same names in every job on a device, so that it takes no GPU to know them.
    choose_arms(stack.example(device), only)


def _check_space(folder: Path) -> None:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize / 2**30
    if free < LEAST_FREE_GIB:
        raise MachineError(
            f"{folder}: {free:.1f} GiB are free on this disk; the runs need {LEAST_FREE_GIB:.0f} GiB"
        )


def _disk(error: Exception, out: Path) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or out}: {FULL}"
    return str(error)
