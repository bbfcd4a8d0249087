"""What a user's kill and a clock that is set must not be taken for."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import START, Await, Job, Proc, Work, incident, pair, trainers, verdict, whole_job
from test_verdict_cause import File
from test_verdict_cause import trainers as ranks
from test_verdict_cause import verdict as judged

from lockstep.record import LedgerTail, read_directory
from lockstep.report import to_json
from lockstep.report.terminal import render
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind, Verdict

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
Change = Callable[[str, bytes], bytes]


def found(job: Job, **how: Any) -> Verdict:
    now = how.pop("now", None)
    with tempfile.TemporaryDirectory() as directory:
        return judge(read_directory(job.write(Path(directory), **how)), now=now)


def is_wrong(found: Verdict) -> bool:
    return found.cause == "rank-died" or found.lost != "" or found.kind in (Kind.STUCK, Kind.STALLED)


pauses = st.builds(
    Work, st.floats(0.01, 2.5), st.just("a.py:1 run"), st.sampled_from([None, "sleep"]), st.just(1.0)
)


@st.composite
def healthy_jobs(draw: st.DrawFn, pause: float = 2.5) -> Job:
    """Correct jobs with a server and workers, whose ranks are slow in different places."""
    procs = whole_job(2)
    never = [Await("never", "api.py:1 serve", "epoll")]
    procs.append(Proc("rollout", "server", 0, {}, never, ends=False))
    procs += [Proc("rollout", "worker", rank, {}, never, ends=False) for rank in (0, 1)]
    for _ in range(draw(st.integers(0, 5))):
        program = draw(st.sampled_from(procs[:4])).program
        program.insert(draw(st.integers(1, len(program) - 1)), draw(pauses))
    return Job(procs, seed=draw(st.integers(0, 9)))


def ended(job: Job, moment: float, seed: int, by: str | None, grace: float = 0.0) -> Change:
    """Everybody is told to end at `moment` and ends within a second; `by` is what trainers say of it.

    With `grace` the processes of the rollout that are no engine go on for so long, and may be slow to write.
    """
    chance = random.Random(seed)

    def change(name: str, data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.splitlines()]
        stop = moment + chance.random() * 0.9
        trains = name.startswith("trainer")
        if grace and not trains and "engine" not in name:
            stop += grace
        kept = [line for line in lines if line["t"] <= stop]
        told = kept[-1]["k"] == "end"
        if trains and by is not None and not told:
            last = {"t": stop, "m": kept[0]["m"] + stop - kept[0]["t"]}
            kept.append({"k": "end", **last, "by": by})
        return b"".join(json.dumps(line).encode() + b"\n" for line in kept)

    return change


@few
@given(
    healthy_jobs(), st.floats(0.0, 1.0), st.integers(0, 99), st.sampled_from(["SIGTERM", "SIGINT", None, ""])
)
def test_a_job_that_the_user_ends_has_lost_nobody(job: Job, at: float, seed: int, by: str | None) -> None:
    begun = min(run.t for run in job._runs if run.proc.side == "trainer")
    moment = START + at * (begun - START)
    end = ended(job, moment, seed, by)

    def as_before(name: str, data: bytes) -> bytes:
        """An older release's ledger does not tell an interruption from an end of its own."""
        return without_monotonic(name, end(name, data))

    verdict = found(job, change=as_before if by == "" else end)
    assert not is_wrong(verdict), (verdict.kind, verdict.sentence, verdict.cause)


@few
@given(healthy_jobs(), st.floats(0.0, 1.0), st.integers(0, 99), st.sampled_from(["SIGTERM", "SIGINT"]))
def test_nor_where_the_server_and_the_workers_take_their_time_to_end(
    job: Job, at: float, seed: int, by: str
) -> None:
    begun = min(run.t for run in job._runs if run.proc.side == "trainer")
    moment = START + at * (begun - START)
    assert not is_wrong(verdict := found(job, change=ended(job, moment, seed, by, grace=11.0))), verdict


# -- clocks that are set


def set_clock(moments: dict[str, tuple[float, float]], then: Change | None = None) -> Change:
    """The wall clock of each of these files is set by so many seconds at a moment."""

    def change(name: str, data: bytes) -> bytes:
        if then:
            data = then(name, data)
        if name not in moments:
            return data
        moment, by = moments[name]
        lines = [json.loads(line) for line in data.splitlines()]
        lines = [{**x, "t": x["t"] + by} if x["t"] >= moment else x for x in lines]
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    return change


@st.composite
def steps(draw: st.DrawFn, job: Job, until: float) -> dict[str, tuple[float, float]]:
    by = draw(st.sampled_from([-3600.0, -30.0, 30.0, 3600.0]))
    moment = START + draw(st.floats(0.1, 1.0)) * (until - START)
    if draw(st.booleans()):
        return dict.fromkeys(job.files, (moment, by))
    return {draw(st.sampled_from(sorted(job.files))): (moment, by)}


@few
@given(healthy_jobs(), st.data())
def test_a_clock_that_is_set_is_no_death_and_no_hang(job: Job, data: st.DataObject) -> None:
    until = min(run.t for run in job._runs if run.proc.side == "trainer")
    moments = data.draw(steps(job, until))
    assert found(job, change=set_clock(moments)).kind is Kind.IN_STEP
    moment = START + data.draw(st.floats(0.0, 1.0)) * (until - START)
    kill = ended(job, moment, data.draw(st.integers(0, 99)), data.draw(st.sampled_from(["SIGTERM", None])))
    assert not is_wrong(verdict := found(job, change=set_clock(moments, kill))), verdict
    live = found(job, change=set_clock(moments), at=moment, now=moment)
    assert not is_wrong(live), live


@few
@given(st.data())
def test_a_clock_that_is_set_changes_no_verdict_on_a_hang(data: st.DataObject) -> None:
    job = Job(incident())
    plain = found(job)
    moments = data.draw(steps(job, job.until - 3.0))
    stepped = found(job, change=set_clock(moments))
    assert stepped.clocks
    assert to_json(replace(stepped, clocks=())) == to_json(plain)


def test_a_clock_that_was_set_is_told(tmp_path: Path) -> None:
    job = Job(whole_job())
    name = Job.name(job.procs[1])
    told = verdict(job, tmp_path, change=set_clock({name: (START + 0.5, 3600.0)}))
    assert told.clocks == ("trainer rank 1: its clock was set once, by +3600 s in all",)
    assert json.loads(json.dumps(to_json(told)))["clocks"] == list(told.clocks)
    assert "clock: trainer rank 1: its clock was set once" in render(told, width=200)
    assert verdict(job, tmp_path / "plain").clocks == ()


def test_now_is_on_the_ledgers_time_also_after_the_clock_was_set(tmp_path: Path) -> None:
    from lockstep.clock import clock_id, stamp

    wall, monotonic = stamp()
    process = {"k": "process", "v": 1, "side": "trainer", "role": "rank", "rank": 0, "pid": 1}
    times = {"t": wall - 3600.0, "m": monotonic, "clock": clock_id()}  # it was an hour earlier then
    (tmp_path / "trainer-rank-0-1.jsonl").write_text(json.dumps({**process, **times}) + "\n")
    tail = LedgerTail(tmp_path)
    assert abs(tail.now() - wall) < 60.0
    tail.refresh()
    assert abs(tail.now() - (wall - 3600.0)) < 60.0


def without_monotonic(name: str, data: bytes) -> bytes:
    lines = [json.loads(line) for line in data.splitlines()]
    return b"".join(
        json.dumps({k: v for k, v in line.items() if k not in ("m", "clock")}).encode() + b"\n"
        for line in lines
    )


def test_in_ledgers_without_monotonic_times_a_clock_that_was_set_back_is_told(tmp_path: Path) -> None:
    job = Job(whole_job())
    step = set_clock({Job.name(job.procs[1]): (START + 0.5, -30.0)}, without_monotonic)
    told = verdict(job, tmp_path, change=step)
    assert "trainer rank 1: its clock was set once, by -" in told.clocks[0]
    assert verdict(job, tmp_path / "old", change=without_monotonic).kind is Kind.IN_STEP


@pytest.mark.parametrize(("host", "differs"), [("other", True), ("boot", False)])
def test_machines_whose_clocks_differ_are_told(tmp_path: Path, host: str, differs: bool) -> None:
    procs = trainers(3, generate=False)
    procs[0].groups.pop("weight-sync")
    procs[1].clock = host
    job = Job(procs)
    told = verdict(job, tmp_path, change=set_clock({Job.name(procs[1]): (0.0, 30.0)}))
    assert (told.clocks != ()) == differs
    if differs:
        assert "trainer rank 1: its clock is about 30 s ahead of that of trainer rank 0" in told.clocks[0]


# -- a real death


def killed(at: float, waits: float) -> Job:
    """Engine core 0 is gone at `at` seconds; the job is ended when the trainers have waited for so long."""
    procs = whole_job(3)
    procs[2].dies = at
    procs[2].program[:] = [x for x in procs[2].program if x != Await("request 3", "", "")]
    cut = procs[2].program.index(next(x for x in procs[2].program if getattr(x, "what", "") == "request 3"))
    procs[2].program[cut:] = [Await("never")]
    procs.append(Proc("rollout", "server", 0, {}, [Await("never", "api.py:1 serve", "epoll")], ends=False))
    return Job(procs, tail=at + waits)


def test_an_engine_core_that_is_gone_while_the_trainers_wait_is_named(tmp_path: Path) -> None:
    job = killed(3.0, 9.0)
    told = verdict(job, tmp_path, change=ended(job, START + 11.0, 1, "SIGTERM"))
    assert (told.kind in (Kind.INCOMPLETE, Kind.STALLED), told.cause) == (True, "rank-died")


@few
@given(st.floats(0.1, 2.5), st.integers(0, 99), st.sampled_from(["SIGTERM", "SIGABRT"]))
def test_a_trainer_rank_that_is_gone_while_the_rollout_goes_on_is_named(
    at: float, seed: int, by: str
) -> None:
    """The launcher ends its peer at once, or the peer fails on the lost connection."""
    procs = pair([Work(4.0)])
    procs.append(Proc("rollout", "server", 0, {}, [Await("never", "api.py:1 serve", "epoll")], ends=False))
    procs[1].dies = at
    job = Job(procs, tail=30.0)
    end = ended(job, START + at + 0.2, seed, by)

    def change(name: str, data: bytes) -> bytes:
        return end(name, data) if name == Job.name(procs[0]) else data

    told = found(job, change=change)
    assert (told.kind, told.lost, told.cause) == (Kind.INCOMPLETE, "trainer rank 1", "rank-died")


def test_ranks_that_end_together_without_a_word_prove_no_order(tmp_path: Path) -> None:
    a, b = ranks()
    a.ends(10.0)
    b.ends(10.4)
    together = judged(tmp_path, a, b)
    assert (together.kind, together.lost) == (Kind.INCOMPLETE, "")
    (tmp_path / "later").mkdir()
    c, d = ranks()
    c.ends(10.0)
    d.pulse(11.0, 7).ends(13.0)
    assert judged(tmp_path / "later", c, d).lost == "trainer rank 0"


def test_of_two_ranks_whose_probes_would_have_told_an_interruption_the_first_died_first(
    tmp_path: Path,
) -> None:
    """Its peer fails on the lost connection a moment later, before anybody tells it to end."""
    a, b = ranks()
    for file in (a, b):
        file.lines[0] |= {"m": 0.0, "clock": "boot"}
    a.ends(10.1)
    b.ends(10.0)
    assert judged(tmp_path, a, b).lost == "trainer rank 1"


def test_who_was_interrupted_did_not_die(tmp_path: Path) -> None:
    a, b = ranks()
    core = File("rollout", "engine core", 0).add("pulse", 9.4, c={}, beat=0, cpu=0.0, park="futex", at=[])
    server = File("rollout", "server", 0)
    for t in range(22):
        server.add("pulse", float(t), c={}, beat=0, cpu=0.0, park="epoll", at=[])
    a.ends(10.0, by="SIGINT")
    b.ends(10.2, by="SIGINT")
    told = judged(tmp_path, a, b, core, server)
    assert (told.kind, told.lost, told.cause) == (Kind.INCOMPLETE, "", "unknown")
    assert "rollout engine core 0" not in told.sentence
