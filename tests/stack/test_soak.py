"""A soak of the real `swift rollout`: as shipped it hangs when its workers are paused at random, and the soak
goes on with new engines; with each cure the same rounds come through."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jobs
import pytest

pytest.importorskip("vllm")
pytest.importorskip("swift.llm.infer.rollout")

from lockstep.experiments.soak.arm import Arm
from lockstep.experiments.soak.record import Record, Tally
from lockstep.experiments.soak.rounds import Settings, plan
from lockstep.record import read_directory
from lockstep.remedies.tried import AS_SHIPPED, TRIED
from lockstep.run.supervise import Limits
from lockstep.stacks.judging import judge
from lockstep.stacks.swift.remedied import cured
from lockstep.stacks.swift.soak import read_prompts
from lockstep.stacks.swift.spec import cpu_job
from lockstep.verdict import Kind

pytestmark = pytest.mark.lockstep_stress

DATA = jobs.ROOT / "datasets" / "shapes"
FORCED = Settings(
    remedy=AS_SHIPPED,
    seed=6927,
    device="cpu",
    workers=2,
    requests=(4, 6),
    max_tokens=(1, 2),
    pause_rate=20.0,
    pause_s=1.0,
)
"""Each worker runs for 50 ms, is stopped for a second, and so on: every few rounds one of them is stopped
between two of its requests."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 25
MINUTES = 6.0

Over = Callable[[Tally], bool]


def soak(model: Path, folder: Path, settings: Settings, over: Over) -> Record:
    """Plays until `over`; fails if it leaves anything."""
    job = cpu_job("soak", model=model, datasets=DATA).with_(cache=jobs.ROOT / ".lockstep" / "cache")
    (remedy,) = (tried for tried in TRIED if tried.name == settings.remedy)
    record = Record(folder / "soak.jsonl", settings)
    with jobs.leaves_nothing(folder):
        Arm(
            job.stack.soak,
            cured(job, remedy),
            record,
            read_prompts(DATA / "train.jsonl"),
            folder / "soak",
            LIMITS,
            tell,
        ).run(over)
    for start in range(record.tally.starts):
        assert jobs.processes(folder / "soak" / f"start-{start}") == []
    return record


LIMITS = Limits(start_s=240.0)


def tell(record: Record, what: str) -> None:
    if what:
        print(f"{record.tally.rounds}: {what}")


@pytest.fixture(scope="module")
def shipped(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A soak as shipped, to its first hang and one round further."""
    until = time.monotonic() + 60 * MINUTES

    def over(tally: Tally) -> bool:
        further = bool(tally.hangs) and tally.rounds > tally.hangs[0]["n"] + 1
        return further or tally.rounds >= MOST_ROUNDS or time.monotonic() >= until

    return soak(model, tmp_path_factory.mktemp("shipped"), FORCED, over)


def test_as_shipped_it_hangs_and_the_soak_goes_on(shipped: Record) -> None:
    tally = shipped.tally
    assert tally.failures == []
    first = tally.hangs[0]
    assert (first["group"], first["cause"]) == ("rollout.dp", "offline-wave-race")
    # The engines were started anew, and asked for the next round.
    assert (tally.starts, tally.rounds) == (2, first["n"] + 2)
    assert tally.pauses > 0
    starts = [json.loads(line) for line in shipped.path.read_text().splitlines() if '"k": "start"' in line]
    verdict = judge(read_directory(starts[0]["ledgers"]))
    assert (verdict.kind, verdict.sentence) == (Kind.STUCK, first["text"])
    prompts = read_prompts(DATA / "train.jsonl")
    assert tally.requests == sum(len(plan(FORCED, n, prompts).prompts) for n in range(tally.rounds))


@pytest.mark.parametrize("remedy", ["independent ranks", "open wave"])
def test_with_a_cure_the_same_rounds_come_through(
    shipped: Record, model: Path, tmp_path: Path, remedy: str
) -> None:
    rounds = max(shipped.tally.hangs[0]["n"] + 1, LEAST_ROUNDS)
    tally = soak(model, tmp_path, replace(FORCED, remedy=remedy), lambda tally: tally.rounds >= rounds).tally
    assert (tally.rounds, tally.answered, tally.starts) == (rounds, rounds, 1)
    assert tally.pauses > 0


@pytest.mark.lockstep_soak
@pytest.mark.lockstep_slow
@pytest.mark.parametrize("remedy", ["independent ranks", "open wave"])
def test_a_cure_comes_through_a_soak(model: Path, tmp_path: Path, remedy: str, stress_minutes: float) -> None:
    settings = replace(FORCED, remedy=remedy, pause_rate=8.0, pause_s=0.5, load=1)
    until = time.monotonic() + 60 * stress_minutes
    tally = soak(model, tmp_path, settings, lambda tally: time.monotonic() >= until).tally
    assert tally.rounds > 0
    assert tally.answered == tally.rounds, [*tally.hangs, *tally.failures]
