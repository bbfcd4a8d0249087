"""`lockstep run`: checks what the runs need, makes the model, runs the arms and shows what came of them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep import devices
from lockstep.experiments.stress.dry_run import show_commands
from lockstep.experiments.stress.scenarios import SUMMARY_FIELDS, Arm, Result, run_arms, stress_arms
from lockstep.experiments.stress.summary import show_result, show_summary
from lockstep.fixtures.checkpoint import CheckpointError, checkpoint_path, ensure_checkpoint
from lockstep.fixtures.shapes import DatasetError, check_dataset
from lockstep.report.console import Console
from lockstep.report.progress import ProgressLine
from lockstep.run.process_tree import StartError, terminate_as_exit
from lockstep.run.run_lock import HomeInUse, home, left_text
from lockstep.run.summary_file import RowsError, read_rows
from lockstep.run.supervise import FULL, Limits
from lockstep.stacks.swift.gpu import (
    GpuOptions,
    gpu_arms,
    gpu_job,
    gpu_layout,
    has_flash_attn,
    pretended_gpus,
)
from lockstep.stacks.swift.pins import StackError, check_stack, complete_cpu_build
from lockstep.stacks.swift.spec import JobSpec, Layout, cpu_job

DATASETS = Path("datasets/shapes")
PATTERN = re.compile(r"[*?\[\]]|\$[\w{]|::")
"""What the package `datasets` takes in the path of a file for a pattern, a variable, or a chain of file
systems."""
CHOICE_LEFT = GpuOptions()
LOG_WIDTH = 110
"""Characters a line where nobody's terminal sets it."""
LEAST_FREE_GIB = 2.0
KEYLESS = "qwen3-vl-tiny-<key>"
"""The tiny model's folder in a dry run without transformers."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it; after SIGTERM and SIGHUP it is 128 and the signal's number
too."""


class SetupError(RuntimeError):
    """The runs cannot begin; the message says what is missing."""


class MachineError(SetupError):
    """The runs cannot begin on this machine, whatever the packages are."""


def run(
    device: str, *, steps: int, out: Path, only: Sequence[str], options: GpuOptions = CHOICE_LEFT
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
    job = prepare(device, steps=steps, out=out.resolve(), options=options, only=only)
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
            results = run_arms(arms, out.resolve(), Limits(), progress, done)
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


def tell_left(console: Console, left: list[Path]) -> None:
    """Says which folders an older Lockstep may have left, if any."""
    if text := left_text(left):
        console.print(text, style="dim")


def dry_run(
    device: str, *, steps: int, out: Path, only: Sequence[str], options: GpuOptions = CHOICE_LEFT
) -> None:
    """Shows what `run` would start. Needs neither the stack nor a GPU, and starts and writes nothing. Raises
    SetupError."""
    _check_choice(device, options, only)
    try:
        layout = gpu_layout(pretended_gpus(options), options) if device == "cuda" else None
    except devices.DeviceError as error:
        raise SetupError(str(error)) from error
    model = options.model or _tiny_model(out.resolve().parent / "models")
    job = _job(layout, model, steps, out.resolve(), tiny=options.model is None)
    show_commands(choose_arms(job, only), out.resolve())


def prepare(
    device: str,
    *,
    steps: int,
    out: Path,
    options: GpuOptions = CHOICE_LEFT,
    instead: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
) -> JobSpec:
    """The job's spec with everything that it names in place: the GPUs, the pinned stack (but for the releases
    that are wanted `instead`), the data, the model, room on the disk. Before all that the names of the arms
    that will be chosen of it, `only`, are checked. Raises SetupError."""
    _check_choice(device, options, only)
    if found := PATTERN.search(str(DATASETS.resolve())):
        raise SetupError(
            f"{DATASETS.resolve()}: the job cannot read its data there: the package `datasets` does not take "
            f"{found[0]!r} for a part of a name; move the checkout"
        )
    try:
        layout = gpu_layout(devices.find_gpus(), options) if device == "cuda" else None
        check_stack(device, instead=instead)
        if layout is None:
            complete_cpu_build()
        out.mkdir(parents=True, exist_ok=True)
        _check_space(out)
        for name in ("train.jsonl", "val.jsonl"):
            check_dataset(DATASETS.resolve() / name)
        model = options.model or ensure_checkpoint(out.parent / "models")
    except devices.DeviceError as error:
        raise MachineError(str(error)) from error
    except (StackError, DatasetError, CheckpointError) as error:
        raise SetupError(str(error)) from error
    except OSError as error:
        raise MachineError(_disk(error, out)) from error
    return _job(layout, model, steps, out, tiny=options.model is None)


def _tiny_model(folder: Path) -> Path:
    """Where a run would have it. Its name ends with a key that needs transformers' release."""
    try:
        return checkpoint_path(folder)
    except CheckpointError:
        return folder / KEYLESS


def _job(layout: Layout | None, model: Path, steps: int, out: Path, *, tiny: bool) -> JobSpec:
    datasets = DATASETS.resolve()
    if layout is None:
        job = cpu_job("job", model=model, datasets=datasets)
    else:
        job = gpu_job(
            "job",
            model=model.resolve(),
            datasets=datasets,
            layout=layout,
            flash_attn=has_flash_attn(),
            tiny=tiny,
        )
    return job.with_(cache=out.parent / "cache", trainer={**job.trainer, "max_steps": steps})


def choose_arms(job: JobSpec, only: Sequence[str]) -> list[Arm]:
    """Those of the job's arms that `only` names, all if none. Raises SetupError."""
    arms = stress_arms(job) if job.device == "cpu" else gpu_arms(job)
    if unknown := set(only) - {arm.spec.name for arm in arms}:
        raise SetupError(
            f"no arm is named {', '.join(sorted(unknown))}; there are: {', '.join(a.spec.name for a in arms)}"
        )
    return [arm for arm in arms if not only or arm.spec.name in only]


def _check_choice(device: str, options: GpuOptions, only: Sequence[str]) -> None:
    if device not in ("cpu", "cuda"):
        raise SetupError(f"no such device: {device!r}; there are: cpu, cuda")
    if device == "cpu" and options != CHOICE_LEFT:
        raise SetupError("--gpus, --rollout-gpus and --model are for --device cuda")
    if options.model is not None and not (options.model / "config.json").is_file():
        raise SetupError(f"{options.model}: expected the folder of a checkpoint, with its config.json")
    # The arms have the same names in every job on a device, so that it takes no GPU to know them.
    choose_arms(cpu_job("any", model=Path(), datasets=Path()).with_(device=device), only)


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
