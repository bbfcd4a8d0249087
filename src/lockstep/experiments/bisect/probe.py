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

from lockstep.experiments.bisect import companions, environment, releases
from lockstep.experiments.bisect.log import Try
from lockstep.run.run_lock import HomeInUse, home
from lockstep.stacks.swift import pins as stack
from lockstep.verdict import Kind

GROUP = "rollout.dp"
"""The group of the hang that is looked for, or with `.cpu` where vLLM syncs its ranks on the CPU."""
REFUSALS = (r"(?:ValueError: |Value error, )(Offline data parallel mode is not supported[^\n\[]*)",)
"""What a release says when it refuses the job by a check of its own (vLLM from 0.14.0 on,
`vllm/config/parallel.py`)."""

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


def distribution(package: str, device: str) -> str:
    """The name on the index: vLLM's CPU build is another distribution."""
    return stack.VLLM[device][0] if package == "vllm" else package


def probe(question: Question, release: str, out: Path, source: Path | None = None) -> Try:
    """Tries one release, or the checkout `source` of the package.

    Where the release asks for another one of a further package when it starts, it is tried again with that
    one. Raises ToolError when nothing can be tried here.
    """
    name = distribution(question.package, question.device)
    want = {distribution(k, question.device): v for k, v in question.wanted.items()}
    if source is None:
        want[name] = release
    try:
        out.mkdir(parents=True, exist_ok=True)
        with home(out):
            tried = _try(question, want, out, (name, source) if source else None)
    except HomeInUse as error:
        raise environment.ToolError(str(error)) from error
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
        built = environment.build(question.device, want, out / "envs", source)
    except environment.BuildError as error:
        answer = {"failure": f"cannot be installed: {error}"}
        return _Tried(answer, *judge(answer))
    answer = _run(question, built, out / "runs")
    return _Tried(answer, *judge(answer), built.lock, built.moved)


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


def judge(answer: Mapping[str, Any]) -> tuple[str, str]:
    """The outcome and its reason, from what `inside` has answered. Only a hang of the group is bad, and only
    a whole run in step is good."""
    failure, folder = answer.get("failure", ""), Path(answer.get("folder", ""))
    verdict, group = answer.get("verdict"), answer.get("group", "")
    if verdict == Kind.STUCK.value and group in (GROUP, f"{GROUP}.cpu"):
        return "bad", answer["sentence"]
    if failure:
        if refusal := _refusal(folder):
            return "refuses", refusal
        return "untestable", _plain(failure, folder)
    if verdict != Kind.IN_STEP.value:
        return "untestable", f"{verdict}: {answer.get('sentence', '')}"
    if not answer["fault_happened"]:
        return "untestable", "the fault did not happen"
    return "good", answer["sentence"]


def _run(question: Question, built: environment.Environment, out: Path) -> dict[str, Any]:
    pinned = {**stack.PINNED, stack.VLLM[question.device][0]: ""}
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    answer = out / "answer.json"
    answer.unlink(missing_ok=True)
    asked = {
        "parent": os.getpid(),
        "device": question.device,
        "arm": question.arm,
        "steps": question.steps,
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


def _refusal(folder: Path) -> str:
    for text in _logs(folder):
        for refusal in REFUSALS:
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
