"""Runs one arm in the environment that is tried, and says what became of it:

    python -m lockstep.experiments.bisect.worker '{"parent": 17, "device": "cpu", "arm": ..., "out": ..., "steps": 3,
                                       "instead": {...}}'

`parent` is the process that asks; when it is gone, this one ends too. `instead` has the releases that are
there on purpose. The answer is `out/answer.json`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from lockstep.experiments.remedies import runs as remedy_runs
from lockstep.experiments.stress.scenarios import Arm, Result, run_arms
from lockstep.experiments.stress.session import MachineError, SetupError, prepare
from lockstep.experiments.stress.session import choose_arms as choose
from lockstep.record import LedgerTail
from lockstep.run.process_tree import StartError, terminate_as_exit
from lockstep.run.run_lock import HomeInUse, home
from lockstep.run.supervise import FULL, Limits
from lockstep.verdict import Kind

PR_SET_PDEATHSIG = 1
LIMITS = Limits(start_s=300.0, total_s=900.0)


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer: `failure`, or the verdict with its group, sentence and whether the fault happened. `here`:
    it is this machine's failure, not the release's."""
    out = Path(asked["out"])
    try:
        job = prepare(asked["device"], steps=asked["steps"], out=out, instead=asked["instead"])
        sizes = {"max_steps": asked["steps"], "eval_steps": asked["steps"], "save_steps": asked["steps"]}
        arms = choose(job.with_(trainer={**job.trainer, **sizes}), [asked["arm"]])
        with home(out), terminate_as_exit():
            (result,) = run_arms(arms, out, LIMITS, _silent, lambda _: None)
    except (MachineError, HomeInUse, OSError) as error:
        return {"failure": str(error), "here": True}
    except (SetupError, StartError) as error:
        return {"failure": str(error)}
    return _answer(result, asked["steps"])


def _silent(arm: Arm) -> Any:
    def progress(tail: LedgerTail, age: float, healthy: bool) -> None:
        """Nobody watches."""

    return progress


def _answer(result: Result, steps: int) -> dict[str, Any]:
    if result.outcome is None:
        return {"failure": result.wrong}
    outcome, verdict = result.outcome, result.outcome.verdict
    logs = [log.read_text(errors="replace") for log in sorted((result.folder / "logs").glob("*.log"))]
    late = result.arm.spec.fault is None or any(remedy_runs.HAPPENED in text for text in logs)
    failure = outcome.failure
    passed = verdict.passed.get("trainer rank", {}).get("step", 0)
    if not failure and verdict.kind is Kind.IN_STEP and passed < steps:
        failure = f"the trainer ended after {passed} of {steps} steps"
    return {
        "failure": failure,
        "here": FULL in failure,
        "verdict": verdict.kind.value,
        "group": verdict.group.name if verdict.group else "",
        "sentence": verdict.sentence,
        "fault_happened": late,
        "seconds": round(outcome.seconds, 1),
        "folder": str(result.folder),
    }


def _end_with_parent(parent: int) -> None:
    """Has the kernel send SIGTERM when the search is gone, however it ended (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    question = json.loads(sys.argv[1])
    _end_with_parent(question.pop("parent"))
    answer = run(question)
    Path(question["out"]).mkdir(parents=True, exist_ok=True)
    part = Path(question["out"], "answer.part")
    part.write_text(json.dumps(answer, indent=2) + "\n")
    part.rename(part.with_suffix(".json"))  # whole or not at all
