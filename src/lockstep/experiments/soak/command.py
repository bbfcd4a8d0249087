"""`lockstep soak`: plays rounds under each remedy asked for, shows what came of them, writes the page."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from lockstep.experiments.soak.arm import Arm, SoakError
from lockstep.experiments.soak.page import print_table, rate_text, write_page
from lockstep.experiments.soak.record import Record, RecordError, Tally, check_ours, read, seed_of
from lockstep.experiments.soak.rounds import Settings
from lockstep.experiments.stress.session import (
    CHOICE_LEFT,
    INTERRUPTED,
    LOG_WIDTH,
    SetupError,
    find_stack,
    prepare,
)
from lockstep.remedies.model import Tried
from lockstep.remedies.tried import AS_SHIPPED
from lockstep.report.console import Console
from lockstep.run.process_tree import StartError, terminate_as_exit
from lockstep.run.run_lock import HomeInUse, home
from lockstep.run.supervise import Limits
from lockstep.stacks import DEFAULT
from lockstep.stacks.base import Choice, Job, Soak, Stack, Trial

OUT = Path(".lockstep", "soak")
REMEDIES = (AS_SHIPPED, "independent ranks", "open wave")
TELL_S = 20.0


@dataclass(frozen=True)
class Options:
    """What of a soak can be chosen; see `Settings`. Nobody's choice of a seed: the record's, or a new one."""

    minutes: float
    """In all, for all remedies together; the starts of the engines count."""
    seed: int | None = None
    remedies: tuple[str, ...] = REMEDIES
    """Their names; hyphens and underscores are taken for spaces."""
    name: str = ""
    requests: tuple[int, int] = Settings.requests
    max_tokens: tuple[int, int] = Settings.max_tokens
    pictures: float = Settings.pictures
    pause_rate: float = Settings.pause_rate
    pause_s: float = Settings.pause_s
    load: int = Settings.load
    only: int | None = None


def run(
    device: str,
    *,
    out: Path,
    options: Options,
    page: Path | None,
    gpu: Choice = CHOICE_LEFT,
    stack: str = DEFAULT,
) -> list[Tally]:
    """Soaks under each of the remedies in turn, and returns what their records say then.

    Raises SetupError when it cannot be done here, SystemExit when it is interrupted.
    """
    soak, trial = _kit(stack)
    remedies = [_remedy(trial, name) for name in options.remedies]
    for remedy in remedies:
        if remedies.count(remedy) > 1:
            raise SetupError(f"--remedy {remedy.name!r}: given {remedies.count(remedy)} times, expected once")
    check(options)
    out = out.resolve()
    try:
        for path in out.glob("*.jsonl"):  # what is not ours is refused before anything is made
            check_ours(path)
    except (RecordError, OSError) as error:
        raise SetupError(str(error)) from error
    console = Console()
    if not console.is_terminal:
        console.width = LOG_WIDTH
    job = prepare(device, steps=1, out=out, options=gpu, stack=stack, alone=True)
    try:
        prompts = soak.prompts()
        with home(out), terminate_as_exit():
            records = [_record(soak, trial.apply(job, remedy), remedy, out, options) for remedy in remedies]
            for record, remedy in zip(records, remedies, strict=True):
                teller = Teller(console)
                teller.begin(record)
                folder = out / record.path.stem
                arm = Arm(soak, trial.apply(job, remedy), record, prompts, folder, Limits(), teller)
                arm.run(_after(options.minutes / len(remedies)))
                teller.end(record)
            if page is not None:
                write_page(soak.about, read_all(out), page)
    except (StartError, HomeInUse, RecordError, SoakError, OSError) as error:
        raise SetupError(str(error)) from error
    except KeyboardInterrupt as stop:
        raise SystemExit(INTERRUPTED) from stop
    tallies = [record.tally for record in records]
    print_table(console, tallies)
    return tallies


def is_wrong(tally: Tally, stack: str = DEFAULT) -> bool:
    """Whether what helps did not, or something else failed. As shipped a soak may hang or not."""
    return bool(tally.failures or (tally.hangs and _remedy(_kit(stack)[1], tally.settings.remedy).helps))


def read_all(out: Path) -> dict[str, Tally]:
    """Name of each record in a folder -> what it says. Raises RecordError."""
    return {path.stem: read(path) for path in sorted(out.glob("*.jsonl"))}


class Teller:
    """Says now and then how far a soak is, and at once what went wrong."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0.0

    def begin(self, record: Record) -> None:
        settings = record.tally.settings
        self._say(f"{settings.remedy}: seed {settings.seed}, record {record.path}")
        if record.tally.rounds:
            self._say(f"  goes on after {record.tally.rounds} rounds, {len(record.tally.hangs)} hangs")

    def __call__(self, record: Record, what: str) -> None:
        if what:
            self._say(f"  {what}")
        elif time.monotonic() - self._told >= TELL_S:
            self._told = time.monotonic()
            self._say(f"  {record.tally.rounds} rounds, {len(record.tally.hangs)} hangs")

    def end(self, record: Record) -> None:
        self._say(f"  {rate_text(record.tally)}")

    def _say(self, text: str) -> None:
        self._console.print(text)


def _after(minutes: float) -> Callable[[Tally], bool]:
    until = time.monotonic() + 60 * minutes
    return lambda tally: time.monotonic() >= until


def _kit(name: str) -> tuple[Soak, Trial]:
    """Raises SetupError for a stack without a service that could be asked alone."""
    stack: Stack = find_stack(name)
    if stack.soak is None or stack.trial is None:
        raise SetupError(f"the stack {name!r} has no service to soak")
    return stack.soak, stack.trial


def _remedy(trial: Trial, name: str) -> Tried:
    wanted = " ".join(name.replace("-", " ").replace("_", " ").split())
    for tried in trial.remedies:
        if tried.name == wanted:
            if tried.change.servers or tried.change.trainer:
                raise SetupError(f"{name!r} changes the trainer's side, which a soak does not have")
            return tried
    raise SetupError(
        f"no remedy is named {name!r}; there are: {', '.join(tried.name for tried in trial.remedies)}"
    )


def check(options: Options) -> None:
    """Raises SetupError, which names the option of the command line that is wrong."""
    for what, (least, most) in (("requests", options.requests), ("max-tokens", options.max_tokens)):
        if not 1 <= least <= most:
            raise SetupError(f"--{what} {least}-{most}: expected LEAST-MOST with 1 <= LEAST <= MOST")
    if not 0 <= options.pictures <= 1:
        raise SetupError(f"--pictures {options.pictures}: expected a share between 0 and 1")
    for what, number in (("stress-minutes", options.minutes), ("pause", options.pause_s)):
        if not 0 < number < math.inf:
            raise SetupError(f"--{what} {number}: expected a finite number of more than 0")
    if not 0 <= options.pause_rate < math.inf:
        raise SetupError(f"--pause-rate {options.pause_rate}: expected a finite number of at least 0")
    for what, count in (("load", options.load), ("round", options.only)):
        if count is not None and count < 0:
            raise SetupError(f"--{what} {count}: expected a number of at least 0")
    if options.name == "." or any(sign in options.name for sign in ("/", "\\", "..")):
        raise SetupError(f"--name {options.name!r}: expected a file's name, without / and \\ and ..")


def _record(soak: Soak, job: Job, remedy: Tried, out: Path, options: Options) -> Record:
    path = out / f"{_name(remedy.name, job.device, options)}.jsonl"
    seed = options.seed if options.seed is not None else seed_of(path)
    settings = Settings(
        remedy=remedy.name,
        seed=random.SystemRandom().randrange(10**6) if seed is None else seed,
        device=job.device,
        workers=soak.workers(job),
        requests=options.requests,
        max_tokens=options.max_tokens,
        pictures=options.pictures,
        pause_rate=options.pause_rate,
        pause_s=options.pause_s,
        load=options.load,
        only=options.only,
    )
    return Record(path, settings)


def _name(remedy: str, device: str, options: Options) -> str:
    if options.name:
        base = options.name if len(options.remedies) == 1 else f"{options.name}_{remedy}"
        return base.replace(" ", "_")
    more = [] if device == "cpu" else [device]
    more += ["paused"] if options.pause_rate else []
    more += [f"load_{options.load}"] if options.load else []
    more += [f"round_{options.only}"] if options.only is not None else []
    return "_".join([remedy.replace(" ", "_"), *more])


def span(text: str) -> tuple[int, int]:
    """`2-8` or `4`, as the options have it. Raises SetupError."""
    words: Iterable[str] = text.split("-") if "-" in text else (text, text)
    try:
        least, most = map(int, words)
    except ValueError:
        raise SetupError(f"{text!r}: expected a number, or two with a dash between them") from None
    return least, most
