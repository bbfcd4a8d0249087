"""`lockstep bisect` and `lockstep probe-release`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from lockstep.experiments.bisect import checkout, environment, log, releases, table
from lockstep.experiments.bisect.probe import Question, distribution, probe
from lockstep.experiments.bisect.search import Mark, conclude, next_release
from lockstep.experiments.stress.scenarios import SUMMARY_FIELDS
from lockstep.experiments.stress.session import SetupError, choose_arms, find_stack, tell_left
from lockstep.report.console import Console
from lockstep.run.process_tree import terminate_as_exit
from lockstep.run.run_lock import HomeInUse, home
from lockstep.run.summary_file import RowsError, read_rows
from lockstep.stacks.base import Stack

CODES = {"good": 0, "bad": 1, "refuses": 125, "untestable": 125}
"""What `git bisect run` expects: 125 means that this commit cannot be tested."""


class BisectError(RuntimeError):
    """The bisection cannot begin or go on; the message says why."""


@dataclass(frozen=True)
class Range:
    """Which releases are searched: by their verdict where it is known, else by their ends."""

    good: str | None = None
    bad: str | None = None
    first: str | None = None
    last: str | None = None
    skip: Sequence[str] = field(default_factory=list)
    pre: bool = False


def check(question: Question) -> None:
    """Raises BisectError unless it can be asked."""
    try:
        stack: Stack = find_stack(question.stack)
    except SetupError as error:
        raise BisectError(str(error)) from error
    if stack.bisection is None:
        raise BisectError(f"the stack {question.stack!r} cannot be bisected")
    if question.device not in stack.pins.by_device:
        known_devices = ", ".join(stack.pins.by_device)
        raise BisectError(f"no such device: {question.device!r}; there are: {known_devices}")
    known = stack.pins.names()
    if question.package not in known:
        raise BisectError(f"{question.package!r} is no pinned package; there are: {', '.join(known)}")
    lock = environment.pins(question.device)
    try:
        resolved = environment.read_lock(lock)
    except OSError as error:
        raise BisectError(f"{error}: run it in a checkout of Lockstep") from error
    for name in question.wanted:
        if name not in known and name not in resolved:
            raise BisectError(f"--with {name}: expected a package of {lock}")
    if question.package in question.wanted:
        raise BisectError(f"--with {question.package}: expected a further package, not the one that is tried")
    # Only the arms' names are asked for here: the job itself is made in the release's environment.
    try:
        choose_arms(stack.example(question.device), [question.arm])
    except SetupError as error:
        raise BisectError(str(error)) from error


def wanted(words: Sequence[str]) -> dict[str, str]:
    """`["torch==2.8.0"]` as a table. Raises BisectError."""
    found: dict[str, str] = {}
    for word in words:
        name, _, release = word.partition("==")
        if not (name and release):
            raise BisectError(f"--with {word}: expected NAME==RELEASE, such as torch==2.8.0")
        if canonicalize_name(name) in found:
            raise BisectError(
                f"--with {word}: {name} has been asked for already, as {found[canonicalize_name(name)]}"
            )
        try:
            found[canonicalize_name(name)] = str(releases.parse(release))
        except releases.ReleaseError as error:
            raise BisectError(f"--with {word}: {error}") from error
    return found


@terminate_as_exit()  # so that what runs, or is being installed, is ended
def bisect(
    question: Question, among: Range, out: Path, *, every: bool, again: bool, page: Path | None
) -> int:
    """Tries releases until the change is found, all of them if `every`; returns the exit code. Raises
    BisectError.
    """
    check(question)
    with _kept(out):
        return _search(question, among, out, every=every, again=again, page=page)


@contextlib.contextmanager
def _kept(out: Path) -> Iterator[None]:
    """`out` for this process alone, when it has nothing of somebody else's where something would be written.
    Raises BisectError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with home(out) as left:
            log.read(out / "log.jsonl")
            read_rows(out / "runs" / "summary.json", SUMMARY_FIELDS)
            tell_left(_console(), left)
            yield
    except (HomeInUse, log.LogError, RowsError, OSError) as error:
        raise BisectError(str(error)) from error


def _search(
    question: Question, among: Range, out: Path, *, every: bool, again: bool, page: Path | None
) -> int:
    console = _console()
    try:
        chosen, given = _choose(question, among)
        path = out / "log.jsonl"
        known = {} if again else {one.release: one for one in log.read(path) if _same(one, question)}
        outcomes = {i: known[str(r)] for i, r in enumerate(chosen) if str(r) in known}
        for i, mark in given.items():
            if i in outcomes and table.MARKS[outcomes[i].outcome] is not mark:
                console.print(f"{_told(outcomes[i])}, when it was tried; given is {mark.value}")
        runs = 0
        while True:
            # What the user knows of the ends counts more than an earlier try.
            marks = {i: table.MARKS[one.outcome] for i, one in outcomes.items()} | given
            if every:
                number = next((i for i in range(len(chosen)) if i not in outcomes and i not in given), None)
            else:
                number = next_release(len(chosen), marks)
            if number is None:
                break
            console.print(
                f"{question.package} {chosen[number]}: building its environment, running the job", style="dim"
            )
            one = probe(question, str(chosen[number]), out)
            log.append(path, one)
            outcomes[number] = one
            runs += 1
            console.print(_told(one))
        found = conclude(len(chosen), marks)
        said = table.sentence([str(release) for release in chosen], found, marks)
        console.print(f"of {len(chosen)} releases {runs} tried now: {said}")
        if page is not None:
            ends = [_given(question, str(chosen[i]), mark) for i, mark in given.items()]
            table.write_page(log.read(path), page, question.steps, ends)
    except (releases.ReleaseError, environment.ToolError, log.LogError, OSError) as error:
        raise BisectError(str(error)) from error
    return 0 if found.first is not None and not found.between else 1


@terminate_as_exit()
def probe_release(
    question: Question, release: str | None, source: Path | None, out: Path, *, fixed: bool
) -> int:
    """Tries one release, or a checkout; returns the code for `git bisect run`, good and bad exchanged if
    `fixed`. Raises BisectError.
    """
    check(question)
    if (release is None) == (source is None):
        raise BisectError("give a release or --source, one of them")
    if source is not None and not any((source / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise BisectError(f"{source}: expected a checkout with pyproject.toml or setup.py")
    if source is not None and question.package in question.bisection.gpu_only and question.device == "cpu":
        raise BisectError(
            f"--source: a checkout of {question.package} is built for GPUs (--device cuda); "
            "without, give a release"
        )
    try:
        if release is not None:
            release = str(releases.parse(release))
        with _kept(out):
            one = probe(question, release or (checkout.describe(source) if source else ""), out, source)
            log.append(out / "log.jsonl", one)
    except (releases.ReleaseError, environment.ToolError, OSError) as error:
        raise BisectError(str(error)) from error
    _console().print(_told(one))
    code = CODES[one.outcome]
    return 1 - code if fixed and code < 2 else code


def _given(question: Question, release: str, mark: Mark) -> log.Try:
    """An end that the user knows, for the page; not for the log."""
    return log.Try(
        package=question.package,
        release=release,
        device=question.device,
        arm=question.arm,
        wanted=dict(question.wanted),
        outcome=mark.value,
        reason="given, not run",
    )


def _console() -> Console:
    return Console(soft_wrap=True)


def _told(one: log.Try) -> str:
    moved = f" (moved: {table.moves(one)})" if table.moves(one) else ""
    return f"{one.package} {one.release}: {one.outcome}: {one.reason}{moved}"


def _choose(question: Question, among: Range) -> tuple[list[Version], dict[int, Mark]]:
    """The releases to search, and what is known of their ends."""
    good, bad, first, last = (releases.parse(text) if text else None for text in
                              (among.good, among.bad, among.first, among.last))  # fmt: skip
    if good is not None and good == bad:
        raise BisectError(f"--good and --bad are both {good}")
    if good is None and bad is None and first is None:
        raise BisectError("expected --good, --bad or --first: years of releases would be tried")
    ends = sorted(end for end in (good, bad) if end is not None)
    if len(ends) == 2:
        first, last = ends
    elif ends:
        first, last = (first, ends[0]) if first and first < ends[0] else (ends[0], last)
    known = releases.list_releases(distribution(question), pre=among.pre)
    chosen = releases.choose(
        known, first=first, last=last, pre=among.pre, skip=[releases.parse(text) for text in among.skip]
    )
    given = {}
    for release, mark in ((good, Mark.GOOD), (bad, Mark.BAD)):
        for i, one in enumerate(chosen):
            if release is not None and releases.same(release, one):
                given[i] = mark
    return chosen, given


def _same(one: log.Try, question: Question) -> bool:
    return one.question() == (
        question.package,
        question.device,
        question.arm,
        tuple(sorted(question.wanted.items())),
        False,
    )
