"""One release -> good, bad, refuses or untestable, and why: the arm run in the release's environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from lockstep import stacks
from lockstep.experiments.bisect import companions, environment, releases
from lockstep.experiments.bisect.log import Try
from lockstep.stacks.base import Bisection
from lockstep.verdict import Kind

MOVES = 3
"""How many packages are moved for a release that asks for them when it starts."""


@dataclass(frozen=True)
class Question:
    """What is asked of every release."""

    package: str
    device: str = "cpu"
    arm: str = "without the fix"
    steps: int = 3
    wanted: Mapping[str, str] = field(default_factory=dict)
    """Releases of other packages, asked for as well."""
    stack: str = stacks.DEFAULT

    @property
    def bisection(self) -> Bisection:
        """What is known of the stack; a stack without it is refused before anything is asked."""
        known = stacks.get(self.stack).bisection
        if known is None:
            raise environment.ToolError(f"the stack {self.stack!r} cannot be bisected")
        return known


def distribution(question: Question, package: str | None = None) -> str:
    """The name on the index, of the package in question if no other is given: a build for another device may
    be another distribution."""
    return stacks.get(question.stack).pins.distribution(package or question.package, question.device)


def probe(question: Question, release: str, out: Path, source: Path | None = None) -> Try:
    """Tries one release, or the checkout `source` of the package.

    Where the release asks for another one of a further package when it starts, it is tried again with that
    one. The caller keeps `out` (`lockstep.run.run_lock`). Raises ToolError when nothing can be tried here.
    """
    name = distribution(question)
    want = {distribution(question, k): v for k, v in question.wanted.items()}
    if source is None:
        want[name] = release
    tried = _try(question, want, out, (name, source) if source else None)
    return Try(
        package=question.package,
        release=release,
        device=question.device,
        arm=question.arm,
        wanted=dict(question.wanted),
        outcome=tried.outcome,
        reason=tried.reason,
        moved=dict(tried.moved),
        group=tried.answer.get("group", ""),
        seconds=tried.answer.get("seconds", 0.0),
        at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        source=source is not None,
    )


@dataclass(frozen=True)
class _Tried:
    answer: Mapping[str, Any]
    outcome: str
    reason: str
    lock: Mapping[str, str] = field(default_factory=dict)
    """Empty where nothing could be installed."""
    moved: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)


def _try(question: Question, want: dict[str, str], out: Path, source: tuple[str, Path] | None) -> _Tried:
    """With what the release asks for when it starts, one package after another, as long as that helps."""
    tried = _try_with(question, want, out, source)
    for _ in range(MOVES):
        more = _companion(tried, want) if tried.outcome == "untestable" else {}
        if not more:
            break
        want |= more
        again = _try_with(question, want, out, source)
        if not again.lock:
            ((name, release),) = more.items()
            return replace(
                tried, reason=f"{tried.reason}; {name} {release}, which it asks for, {again.reason}"
            )
        tried = again
    return tried


def _try_with(
    question: Question, want: Mapping[str, str], out: Path, source: tuple[str, Path] | None
) -> _Tried:
    try:
        built = environment.build(question.device, want, out / "envs", source, question.bisection.names_torch)
    except environment.BuildError as error:
        answer = {"failure": f"cannot be installed: {error}"}
        return _Tried(answer, *judge(question.bisection, answer))
    answer = _run(question, built, out / "runs")
    return _Tried(answer, *judge(question.bisection, answer), built.lock, built.moved)


def _companion(tried: _Tried, want: Mapping[str, str]) -> dict[str, str]:
    """The package that a run asked for as it started, and the release for it; empty if it asked for none that
    can be moved."""
    answer = tried.answer
    wanted = companions.asked_for([answer.get("failure", ""), *_logs(Path(answer.get("folder", "")))])
    if wanted is None or (name := canonicalize_name(wanted.name)) in want or name not in tried.lock:
        return {}
    try:
        known = releases.list_releases(name)
    except releases.ReleaseError:
        return {}
    found = companions.nearest(wanted, known, Version(tried.lock[name]))
    return {name: str(found)} if found else {}


def judge(known: Bisection, answer: Mapping[str, Any]) -> tuple[str, str]:
    """The outcome and its reason, from what `inside` has answered. Only a hang of the group is bad, and only
    a whole run in step is good."""
    failure, folder = answer.get("failure", ""), Path(answer.get("folder", ""))
    verdict, group = answer.get("verdict"), answer.get("group", "")
    if verdict == Kind.STUCK.value and group in (known.group, f"{known.group}.cpu"):
        return "bad", answer["sentence"]
    if failure:
        if refusal := _refusal(known, folder):
            return "refuses", refusal
        return "untestable", _plain(failure, folder)
    if verdict != Kind.IN_STEP.value:
        return "untestable", f"{verdict}: {answer.get('sentence', '')}"
    if not answer["fault_happened"]:
        return "untestable", "the fault did not happen"
    return "good", answer["sentence"]


def _run(question: Question, built: environment.Environment, out: Path) -> dict[str, Any]:
    pinned = stacks.get(question.stack).pins.wanted(question.device)
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    answer = out / "answer.json"
    answer.unlink(missing_ok=True)
    asked = {
        "parent": os.getpid(),
        "device": question.device,
        "arm": question.arm,
        "steps": question.steps,
        "stack": question.stack,
        "out": str(out),
        "instead": {name: built.lock[name].partition("+")[0] for name in pinned if name in built.lock},
    }
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    log = out / "inside.log"
    command = [str(built.python), "-I", "-m", "lockstep.experiments.bisect.worker", json.dumps(asked)]
    with (
        log.open("w") as told,
        subprocess.Popen(command, env=env, stdout=told, stderr=subprocess.STDOUT) as run,
    ):
        try:
            run.wait()
        except BaseException:
            run.terminate()  # it ends what it has started
            run.wait()
            raise
    if answer.exists():
        found: dict[str, Any] = json.loads(answer.read_text())
        if found.get("here"):
            raise environment.ToolError(found["failure"])
        return found
    if run.returncode < 0 or run.returncode >= 128:
        raise SystemExit(run.returncode if run.returncode > 0 else 128 - run.returncode)
    last = (log.read_text(errors="replace").strip() or "no output").splitlines()[-1]
    return {"failure": f"the run ended with {run.returncode}: {last[:300]}"}


def _refusal(known: Bisection, folder: Path) -> str:
    for text in _logs(folder):
        for refusal in known.refusals:
            if found := re.search(refusal, text):
                return found[1].strip()
    return ""


def _logs(folder: Path) -> list[str]:
    """What the processes of a run wrote; nothing without a run."""
    found = sorted((folder / "logs").glob("*.log")) if str(folder) != "." else []
    return [log.read_text(errors="replace") for log in found]


def _plain(text: str, folder: Path) -> str:
    """Without the paths of this machine."""
    text = text.replace(f"{folder}/", "") if str(folder) != "." else text
    text = re.sub(r"(?:/[\w.+-]+)+/site-packages/", "", text)
    return re.sub(r"(?<![:/\w.])(?:/[\w.+-]+)+/(?=[\w.+-])", "", text)
