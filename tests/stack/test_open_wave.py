"""Open wave on two real engines of vLLM in offline data parallelism: as shipped they hang, with it they do
not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.fixtures.checkpoint import ensure_checkpoint
from lockstep.record import read_directory
from lockstep.run.ports import free_ports
from lockstep.run.process_tree import ProcessTree
from lockstep.stacks.judging import judge
from lockstep.stacks.swift.inside import cpu
from lockstep.verdict import Kind, Verdict

pytest.importorskip("vllm")

HERE = Path(__file__).parent
START_S, ROUND_S = 240.0, 60.0
PAUSE = 2.0
"""Seconds; long enough for 32 steps of the peer's engine core."""

LATE = [[4, PAUSE, 0.0], [4, 0.0, 0.0]]
BOTH_LATE = [[4, PAUSE, 0.0], [4, PAUSE, 0.05]]
PLAIN = [[2, 0.0, 0.0], [2, 0.0, 0.0]]
FAILS = [[0, "raise", 0.0], [3, 0.0, 0.0]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_checkpoint(tmp_path_factory.mktemp("models"))


Run = Callable[..., tuple[Verdict | None, list[list[str]]]]


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Run:
    """Two ranks through rounds: the verdict that they are stuck, or None if they came through; and what each
    said."""

    def go(rounds: list[Any], cure: bool) -> tuple[Verdict | None, list[list[str]]]:
        with _ranks(tmp_path, model, rounds, cure) as said:
            verdict = _watch(tmp_path, said)
            return verdict, [lines() for lines in said]

    return go


@contextmanager
def _ranks(
    folder: Path, model: Path, rounds: list[Any], cure: bool
) -> Iterator[list[Callable[[], list[str]]]]:
    port = free_ports(1, "127.0.0.1")[0]
    env = os.environ | cpu.rollout_environment(2, 1)
    env |= {
        "LOCKSTEP_RUN_DIR": str(folder),
        "PYTHONPATH": str(HERE),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "HF_HUB_OFFLINE": "1",
    }
    (folder / "ledgers").mkdir()
    with ProcessTree() as tree:
        for rank in (0, 1):
            argv = [
                sys.executable,
                str(HERE / "wave_rank.py"),
                str(rank),
                "2",
                str(port),
                str(folder),
                str(model),
            ]
            argv += [json.dumps(rounds), *(["open"] if cure else [])]
            tree.start(f"rank {rank}", argv, env=env, log=folder / f"rank{rank}.log")
        yield [lambda rank=rank: _lines(folder / f"rank-{rank}") for rank in (0, 1)]  # type: ignore[misc]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _watch(folder: Path, said: list[Callable[[], list[str]]]) -> Verdict | None:
    deadline, told = time.monotonic() + START_S, 0
    while time.monotonic() < deadline:
        time.sleep(0.5)
        spoken = [lines() for lines in said]
        if all(lines and lines[-1] == "done" for lines in spoken):
            return None
        if all(spoken) and sum(map(len, spoken)) > told:
            told, deadline = sum(map(len, spoken)), time.monotonic() + ROUND_S
        if not all(spoken):
            continue  # still starting
        verdict = judge(read_directory(folder), settle_s=5.0, now=time.time())
        if verdict.kind is Kind.STUCK:
            return verdict
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("rank*.log")))
    pytest.fail(f"neither through nor stuck: {[lines() for lines in said]}\n{logs}")


def _place(verdict: Verdict | None) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    assert verdict is not None
    assert verdict.group is not None
    return verdict.group.name, verdict.waiting, verdict.absent


def test_as_shipped_a_late_rank_hangs(run: Run) -> None:
    verdict, said = run([PLAIN, LATE, PLAIN], cure=False)
    assert _place(verdict) == ("rollout.dp", (0,), (1,))
    assert said == [["ready", "round 0: 2"], ["ready", "round 0: 2", "round 1: 4"]]


def test_as_shipped_a_failing_worker_hangs_its_peer(run: Run) -> None:
    verdict, said = run([FAILS], cure=False)
    assert _place(verdict) == ("rollout.dp", (1,), (0,))
    assert said == [["ready", "round 0: failed"], ["ready"]]


def test_as_shipped_two_late_ranks_meet_the_weights_in_mid_wave(run: Run) -> None:
    """The second deadlock that docs/protocol.md lists: both workers answer while their engine cores still
    step."""
    verdict, said = run([BOTH_LATE], cure=False)
    assert _place(verdict) == ("rollout.dp", (1,), (0,))
    assert said == [["ready", "round 0: 4"]] * 2


def test_open_wave_keeps_all_in_step(run: Run) -> None:
    """Late, both late, nothing to add, failing before and after the first request, on one rank and on
    both."""
    nothing = [[0, 0.0, 0.0], [3, 0.0, 0.0]]
    fails_midway = [[2, "raise", 0.0], [3, 0.0, 0.0]]
    both_fail = [[1, "raise", 0.0], [0, "raise", 0.05]]
    rounds = [PLAIN, LATE, BOTH_LATE, nothing, FAILS, fails_midway, both_fail, LATE, PLAIN]
    verdict, said = run(rounds, cure=True)
    assert verdict is None, verdict
    first = ["2", "4", "4", "0", "failed", "failed", "failed", "4", "2"]
    second = ["2", "4", "4", "3", "3", "3", "failed", "4", "2"]
    for lines, answers in zip(said, (first, second), strict=True):
        assert lines == ["ready", *(f"round {n}: {answer}" for n, answer in enumerate(answers)), "done"]


def test_entry_point_is_registered_and_asks_for_the_switch() -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "plugins = entry_points(group='vllm.general_plugins')\n"
        "next(plugin for plugin in plugins if plugin.name == 'open_wave').load()()\n"
        "from vllm.v1.engine.core import DPEngineCoreProc\n"
        "print(hasattr(DPEngineCoreProc, 'open_wave_begin'))\n"
    )
    for value, installed in (("", "False"), ("1", "True")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"OPEN_WAVE": value},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout.split()[-1:] == [installed], done.stderr[-2000:]
