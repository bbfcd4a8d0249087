"""From scripts to a job: reads, repairs and follows each, and puts the processes side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lockstep.audit import sources as facts
from lockstep.audit import versions
from lockstep.audit.model import AuditError, Command, Finding, Job, Place, Process, Severity
from lockstep.audit.programs import process_of, unread_of, wait_of
from lockstep.audit.shell.follow import follow
from lockstep.audit.shell.paste import Repaired, repair
from lockstep.audit.shell.statements import Followed
from lockstep.audit.shell.text import Layout, read, split
from lockstep.audit.shell.wrappers import name_of

MAX_PROCESSES = 200
"""Processes of one job. Each is compared with each other one."""


def from_paths(paths: Iterable[Path], pinned: dict[str, str] | None = None) -> Job:
    """The job that scripts start together. `pinned`: releases by package, where known. Raises AuditError."""
    return from_texts([(str(path), read(path)) for path in paths], pinned)


def from_texts(texts: Iterable[tuple[str, str]], pinned: dict[str, str] | None = None) -> Job:
    """The same from (path, text) pairs. Raises AuditError where none of them starts a process of such a
    job."""
    job = Job()
    lines = 0
    named: list[str] = []
    for path, text in texts:
        named.append(path)
        repaired = repair(split(text))
        lines += len(repaired.rows)
        job.layouts[path] = Layout(path, repaired.rows)
        followed = follow(job.layouts[path])
        _take(job, followed)
        job.notes.extend(_notes(path, text, repaired, followed))
    job.versions = {**versions.from_commands(job.commands), **(pinned or {})}
    if not job.processes:
        raise AuditError(_nothing(named, job, lines))
    for process in job.processes:
        process.versions = job.versions
    job.notes.extend(_not_read(job.unread))
    if not {"vllm", "ms-swift"} & job.versions.keys():
        job.notes.append(
            Finding(
                "releases-unknown",
                Severity.NOTE,
                job.processes[0].place,
                "which releases run is not known",
                "No pip line pins them and --versions was not given. The findings hold for the releases "
                "that they name.",
            )
        )
    return job


def _take(job: Job, followed: Followed) -> None:
    for command in followed.commands:
        order = len(job.commands)
        job.commands.append(command)
        if not command.words:
            continue
        process = process_of(command, order)
        if process is not None:
            job.processes.append(process)
            if len(job.processes) > MAX_PROCESSES:
                raise AuditError(
                    f"{process.place}: more than {MAX_PROCESSES} processes of a job: expected a launch script"
                )
        elif (wait := wait_of(command, order)) is not None:
            job.waits.append(wait)
        elif len(job.unread) < MAX_PROCESSES and (unread := unread_of(command, order)) is not None:
            job.unread.append(unread)


def _nothing(named: list[str], job: Job, lines: int) -> str:
    counts = Counter(_name(command)[:40] for command in job.commands if command.words)
    found = ", ".join(name for name, _ in counts.most_common(8))
    where = f"{named[0]}:1" if len(named) == 1 else ", ".join(named)
    return (
        f"{where}: no command of ms-swift or vLLM in {lines} lines; found "
        f"{f'the commands {found}' if found else 'no command at all'}. "
        "Expected swift rollout, swift rlhf, torchrun .../swift/cli/rlhf.py, trl vllm-serve or vllm serve"
    )


def _name(command: Command) -> str:
    name = name_of(command.words[0])
    return (
        f"{name} {command.words[1].text}"
        if name in ("swift", "vllm", "trl") and len(command.words) > 1
        else name
    )


def _not_read(unread: list[Process]) -> Iterable[Finding]:
    seen: set[str] = set()
    for process in unread:
        if process.program in seen:
            continue
        seen.add(process.program)
        yield Finding(
            "program-not-read",
            Severity.NOTE,
            process.place,
            f"{process.program} was not read",
            "The audit knows the programs of ms-swift, trl vllm-serve and vllm serve. It does not say what "
            "this one does with its options, and whether it fits the others.",
        )


def _notes(path: str, text: str, repaired: Repaired, followed: Followed) -> Iterable[Finding]:
    def note(
        id_: str, line: int, title: str, reason: str, severity: Severity = Severity.NOTE, advice: str = ""
    ) -> Finding:
        return Finding(
            id_,
            severity,
            Place(path, line),
            title,
            reason,
            (facts.BASH,) if severity is not Severity.NOTE else (),
            advice,
        )

    for end, lost in repaired.cut_off:
        yield note(
            "arguments-cut-off",
            end,
            f"the command ends here: the arguments from line {lost} on are not passed",
            "A backslash continues a line only as its very last character, and a comment between two lines "
            "of a command ends it. The shell "
            f"takes line {lost} for a command of its own. The audit reads the script as the shell does.",
            Severity.HAZARD,
            "End this line with a backslash and nothing after it; move comments above the command.",
        )
    if repaired.pasted:
        joined = (
            f"{len(repaired.joined)} lines were joined to the command they belong to"
            if repaired.joined
            else ""
        )
        prose = (
            f"{len(repaired.sentences)} lines that are no shell were taken for comments"
            if repaired.sentences
            else ""
        )
        line = (repaired.joined or repaired.sentences or [1])[0]
        yield note(
            "pasted",
            line,
            "line continuations or comment signs are missing, as after pasting",
            f"{'; '.join(filter(None, (joined, prose)))}. Bash would not run the text as it is.",
        )
    if "\r" in text:
        yield note(
            "carriage-returns",
            1,
            "lines end in CR LF",
            "Bash takes the CR for part of the last word, and a backslash before it continues "
            "nothing. The audit reads the lines as if they ended in LF.",
        )
    for place in followed.errors[:3]:
        yield note(
            "not-understood",
            place.line,
            "the shell parser did not understand this place",
            "What follows may be read wrongly.",
        )
    for name, place in followed.sourced[:5]:
        yield note(
            "sourced",
            place.line,
            f"{name[:80]} is sourced and was not read",
            "It may set variables that this audit does not see.",
        )
    for name, place in followed.called[:5]:
        yield note(
            "calls-script",
            place.line,
            f"{name[:80]} is run and was not read",
            "Name it as well, if it starts part of the job.",
        )
