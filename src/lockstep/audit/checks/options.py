"""Options that a program does not have: which names there are is decided by the release."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.audit import sources as facts
from lockstep.audit.known_options import KNOWN, RENAMED, RENAMED_IN, SWIFT, TRL
from lockstep.audit.model import Finding, Job, Process, Severity
from lockstep.audit.versions import at_least

_SHOWN = 8


def check(job: Job) -> Iterator[Finding]:
    for process in job.processes:
        sub = process.program.split()[-1].rsplit("/", 1)[-1].removesuffix(".py")
        if sub not in KNOWN or process.program.startswith("megatron"):
            continue
        trl = process.program.startswith("trl")
        release = job.versions.get("trl" if trl else "ms-swift")
        renamed = [] if trl or process.side == "trainer" else list(_renamed(process, release))
        yield from renamed
        yield from _unknown(process, sub, "trl" if trl else "ms-swift", release)


def refused_name(process: Process, name: str) -> bool:
    """Whether a server of ms-swift is given an option under its older name by a release that refuses it."""
    swift = process.versions.get("ms-swift")
    older = name in process.options and name in RENAMED and not process.program.startswith("trl")
    return older and swift is not None and bool(at_least(swift, RENAMED_IN))


def _renamed(process: Process, release: str | None) -> Iterator[Finding]:
    later = at_least(release, RENAMED_IN) if release is not None else None
    older = [name for name in process.options if name in RENAMED]
    newer = [n for n in process.options if n.startswith("vllm_") and n.removeprefix("vllm_") in RENAMED]
    if release is None and older and newer:
        yield _refused(
            process, older[0], f"an ms-swift that has --{newer[0]}", f"It is --vllm_{older[0]} there."
        )
        return
    for name in process.options:
        if name in RENAMED and later:
            yield _refused(process, name, f"ms-swift {release}", f"It is --vllm_{name} there.")
        elif name in RENAMED and release is None:
            yield Finding(
                "option-renamed",
                Severity.WARNING,
                process.at(name),
                f"--{name} is --vllm_{name} from ms-swift {RENAMED_IN} on",
                f"From {RENAMED_IN} on ms-swift refuses the older name and does not start; before it, the "
                "option counts as written. Which release runs is not known.",
                (facts.RENAMED_OPTIONS,),
                f"Write --vllm_{name}, or name the release with --versions.",
            )
        elif name.startswith("vllm_") and name.removeprefix("vllm_") in RENAMED and later is False:
            before = name.removeprefix("vllm_")
            yield _refused(process, name, f"ms-swift {release}", f"It is --{before} before {RENAMED_IN}.")


def _unknown(process: Process, sub: str, package: str, release: str | None) -> Iterator[Finding]:
    """Options that are not in the table of the one release that there is a table for."""
    checked = TRL if package == "trl" else SWIFT
    if release not in (None, checked):
        return
    old = frozenset() if package == "trl" or process.side == "trainer" else RENAMED
    lost = [name for name in process.options if name not in old and not _has(sub, name)]
    if release is not None:
        for name in lost[:_SHOWN]:
            yield _refused(
                process, name, f"{package} {release}", "It may be misspelt, or of another release."
            )
        lost = lost[_SHOWN:]
    if lost:
        names = ", ".join(f"--{name[:60]}" for name in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        yield Finding(
            "options-unknown",
            Severity.NOTE if release is None else Severity.HAZARD,
            process.at(lost[0]),
            f"options of {process.program} that {package} {checked} does not have: {names}{more}",
            f"{package} {checked} refuses to start with one. Which release runs is not known; what these "
            "options ask for was not counted."
            if release is None
            else f"{package} {checked} refuses to start with one.",
            (facts.UNKNOWN_OPTIONS,),
            "Name the release with --versions." if release is None else "",
        )


def _has(sub: str, name: str) -> bool:
    known = KNOWN[sub]
    if name in known or name.removeprefix("no_") in known or len(name) == 1 or name in ("help", "config"):
        return True
    # argparse takes the beginning of a name, where only one name begins so.
    return sum(other.startswith(name) for other in known) == 1


def _refused(process: Process, name: str, release: str, instead: str) -> Finding:
    return Finding(
        "option-unknown",
        Severity.HAZARD,
        process.at(name),
        f"{release} has no option --{name[:60]}",
        f"{process.program} refuses to start with an option that it does not know. {instead}",
        (facts.UNKNOWN_OPTIONS,),
        "Correct the name, or take the option out.",
    )
