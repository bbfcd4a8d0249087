"""A process that gives no sign of life may be starved and move all the while: how long it may be silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledgers import START, Await, Job, Proc, Work, incident, pair, verdict

from lockstep.verdict import Kind

BLOCKED = Await("never", "data.py:3 load", "read")


def silenced(rank: int, since: float) -> Job:
    """Rank 0 waits for rank 1, which is blocked; rank `rank` writes nothing any more."""
    procs = pair([BLOCKED])
    procs[rank].dies = since
    return Job(procs, tail=90.0)


def test_a_silent_rank_is_not_stuck_within_a_minute_and_is_named(tmp_path: Path) -> None:
    found = verdict(silenced(1, 2.0), tmp_path, at=START + 30, now=START + 30)
    assert found.kind is Kind.STALLED
    assert "trainer rank 1 is silent: no pulse for 2" in found.sentence
    assert found.sentence.endswith(" s: starved, stopped or gone")


def test_a_rank_that_stays_silent_is_stuck_in_the_end_and_is_named(tmp_path: Path) -> None:
    found = verdict(silenced(1, 2.0), tmp_path, at=START + 70, now=START + 70)
    assert found.kind is Kind.STUCK
    assert "rank 1 issued 3 and is silent: no pulse for 6" in found.sentence
    assert found.ranks[1].silent_s is not None
    assert found.ranks[0].silent_s is None


def test_files_alone_prove_no_more(tmp_path: Path) -> None:
    job = silenced(1, 2.0)
    assert verdict(job, tmp_path / "a", at=START + 30).kind is Kind.STALLED
    assert verdict(job, tmp_path / "b", at=START + 70).kind is Kind.STUCK


def test_a_rank_seen_still_for_the_settling_time_may_be_silent_after_it(tmp_path: Path) -> None:
    found = verdict(silenced(1, 9.0), tmp_path, at=START + 20, now=START + 20)
    assert found.kind is Kind.STUCK


def test_nor_is_the_job_stuck_while_another_process_of_it_is_silent(tmp_path: Path) -> None:
    """The server, say, on its way to hand a request to the engine that is absent."""
    server = Proc("rollout", "server", 0, {}, [Await("never", "api.py:1 serve", "epoll")], ends=False)
    assert verdict(Job([*incident(), server]), tmp_path / "a").kind is Kind.STUCK
    server.dies = 3.0
    job = Job([*incident(), server], tail=90.0)
    assert verdict(job, tmp_path / "b", at=START + 30).kind is Kind.STALLED
    assert verdict(job, tmp_path / "c", at=START + 80).kind is Kind.STUCK


def test_a_pulse_gap_shorter_than_silence_is_no_stillness(tmp_path: Path) -> None:
    assert verdict(silenced(1, 4.5), tmp_path, at=START + 8, now=START + 8).kind is Kind.INCOMPLETE


def pulses_of_rank_1(change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Any:
    """A `change` of `Job.write`: rank 1's pulses changed, or left out."""

    def apply(name: str, data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.splitlines()]
        if name.startswith("trainer-rank-1"):
            kept = (change(line) if line["k"] == "pulse" else line for line in lines)
            lines = [line for line in kept if line is not None]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    return apply


@pytest.mark.parametrize(("gap", "kind"), [(3.5, Kind.STUCK), (7.0, Kind.INCOMPLETE)])
def test_pulses_far_apart_are_those_of_a_starved_process(tmp_path: Path, gap: float, kind: Kind) -> None:
    last = [START - gap]

    def thin(line: dict[str, Any]) -> dict[str, Any] | None:
        if line["t"] - last[0] < gap:
            return None
        last[0] = line["t"]
        return line

    job = Job(pair([BLOCKED]), tail=60.0)
    now = START + 40
    assert verdict(job, tmp_path, at=now, now=now, change=pulses_of_rank_1(thin)).kind is kind


@pytest.mark.parametrize(("share", "kind"), [(0.0, Kind.STUCK), (0.1, Kind.STUCK), (0.6, Kind.INCOMPLETE)])
def test_a_rank_that_waits_for_a_core_is_about_to_move(tmp_path: Path, share: float, kind: Kind) -> None:
    def queue(line: dict[str, Any]) -> dict[str, Any]:
        return {**line, "queued": share * (line["t"] - START)}

    job = Job(pair([BLOCKED]), tail=60.0)
    now = START + 30
    assert verdict(job, tmp_path, at=now, now=now, change=pulses_of_rank_1(queue)).kind is kind


def test_a_worker_that_prepares_its_requests_and_falls_silent_is_waited_for(tmp_path: Path) -> None:
    worker = Proc("rollout", "worker", 1, {}, [Work(2.0), BLOCKED], ends=False)
    assert verdict(Job([*incident(), worker], tail=90.0), tmp_path / "idle", at=START + 30).kind is Kind.STUCK
    worker.dies = 12.0
    silent = Job([*incident(), worker], tail=90.0)
    silent.add(worker, START + 3.0, k="boundary", b="generate begin", n=1)
    assert verdict(silent, tmp_path / "silent", at=START + 30).kind is Kind.STALLED
    assert verdict(silent, tmp_path / "later", at=START + 80).kind is Kind.STUCK
