from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ledgers import (
    AR,
    START,
    Action,
    Await,
    Issue,
    Job,
    Pass,
    Proc,
    Work,
    incident,
    pair,
    verdict,
    whole_job,
)

from lockstep.verdict import Kind


def test_the_incident(tmp_path: Path) -> None:
    found = verdict(Job(incident()), tmp_path)
    assert found.kind is Kind.STUCK
    assert found.sentence == (
        "group rollout.dp (2 ranks): rank 0 waits in all_reduce #20 of 2 int32, issued at rollout.dp.py:7; "
        "rank 1 issued 19 and is idle in _process_input_queue (vllm/v1/engine/core.py:505)"
    )
    assert found.group is not None
    assert (found.group.name, found.side, found.seq) == ("rollout.dp", "rollout", 20)
    assert (found.waiting, found.absent) == ((0,), (1,))
    assert [(v.issued, v.state, v.park) for v in found.ranks] == [
        (20, "waiting", "futex"),
        (19, "absent", "futex"),
    ]
    assert found.ranks[1].process == "rollout engine core 1"
    assert found.consequences == (
        "trainer.world: rank 1 waits for rank 0, which waits for the rollout (inside generate 3)",
    )
    assert found.still_s > 5


def test_a_hang_in_the_trainer_while_nobody_generates_is_the_trainers(tmp_path: Path) -> None:
    found = verdict(Job(pair([Await("never", "data.py:3 load", "read")])), tmp_path)
    assert found.kind is Kind.STUCK
    assert "rank 1 issued 3 and is idle in load (data.py:3)" in found.sentence
    assert (found.side, found.seq, str(found.boundary)) == ("trainer", 4, "step 1")


def test_trainers_waiting_for_a_rollout_that_agrees_are_stalled(tmp_path: Path) -> None:
    procs = whole_job(2)
    for core in procs[2:]:  # both engine cores lose the last request
        core.program[core.program.index(Await("request 2", *_idle(core))) :] = [Await("never", *_idle(core))]
    found = verdict(Job(procs), tmp_path)
    assert found.kind is Kind.STALLED
    assert found.group is None
    assert "which waits for the rollout (inside generate 2)" in found.sentence


def _idle(core: Proc) -> tuple[str, str]:
    wait = core.program[-1]
    assert isinstance(wait, Await)
    return wait.at, wait.park


def test_a_hang_only_after_the_settling_time(tmp_path: Path) -> None:
    job = Job(pair([Await("never", "data.py:3 load", "read")]))
    hung_at = START + 0.1
    early = verdict(job, tmp_path / "early", at=hung_at + 4.0, now=hung_at + 4.0)
    assert (early.kind, early.running) == (Kind.INCOMPLETE, True)
    assert early.sentence == "no claim: the job is running"
    late = verdict(job, tmp_path / "late", at=hung_at + 8.0, now=hung_at + 8.0)
    assert late.kind is Kind.STUCK
    patient = verdict(job, tmp_path / "late", at=hung_at + 8.0, now=hung_at + 8.0, settle_s=9.0)
    assert patient.kind is Kind.INCOMPLETE


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (Work(40, "reward.py:1 score", cpu=1.0), Kind.INCOMPLETE),  # running
        (Work(40, "reward.py:1 score", "sleep", cpu=0.0), Kind.STALLED),  # a timer that ends
        (Work(40, "reward.py:1 score", "read", cpu=0.1), Kind.STUCK),  # blocked
    ],
)
def test_what_the_absent_rank_does_tells_slow_from_stuck(tmp_path: Path, work: Work, kind: Kind) -> None:
    found = verdict(Job(pair([work])), tmp_path, at=START + 35, now=START + 35)
    assert found.kind is kind


def test_a_sleep_has_a_limit(tmp_path: Path) -> None:
    found = verdict(Job(pair([Work(90, "poll.py:1 wait", "sleep", cpu=0.0)])), tmp_path, at=START + 80)
    assert found.kind is Kind.STUCK
    assert "rank 1 issued 3 and sleeps in wait (poll.py:1)" in found.sentence


def test_a_worker_that_sleeps_may_yet_feed_the_absent_engine_core(tmp_path: Path) -> None:
    pause = [Work(30, "rollout.py:1 pause", "sleep", cpu=0.0)]
    worker = Proc("rollout", "worker", 1, {}, [*pause, Await("never")], ends=False)
    job = Job([*incident(), worker])
    assert verdict(job, tmp_path / "a", at=START + 20).kind is Kind.STALLED
    assert verdict(job, tmp_path / "b", at=START + 40).kind is Kind.STUCK


def test_a_rank_that_waits_may_spin(tmp_path: Path) -> None:
    job = Job(pair([Await("never", "data.py:3 load", "read")]))
    name = Job.name(job.procs[0])

    def spin(file: str, data: bytes) -> bytes:
        if file != name:
            return data
        lines = [json.loads(line) for line in data.splitlines()]
        for line in lines:
            if line.get("w"):
                line |= {"cpu": line["t"] - START, "park": None}
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    assert verdict(job, tmp_path, change=spin).kind is Kind.STUCK


def test_an_ended_rank_is_absent(tmp_path: Path) -> None:
    procs = pair([])
    procs[1].program = [*procs[1].program[:5], Work(0.1)]
    found = verdict(Job(procs), tmp_path, now=START + 12)
    assert found.kind is Kind.STUCK
    assert "rank 1 issued 3 and has ended" in found.sentence


def test_unlike_collectives_under_one_number_hang_too(tmp_path: Path) -> None:
    procs = pair([])
    stop = Await("never", "x.py:1 f")
    job = Job([replace(p, program=[*p.program[:5], stop]) for p in procs])
    for rank, n in ((0, 640), (1, 704)):
        for i in range(20):
            wait = {"g": 0, "seq": 4, "op": "all_reduce", "dtype": "Float", "n": n, "at": "zero.py:5"}
            line = {
                "c": {"0": [4, 3]},
                "beat": 0,
                "cpu": 0.1,
                "park": None,
                "w": wait,
                "at": ["zero.py:5 step"],
            }
            job.add(procs[rank], job.until + i, k="pulse", **line)
    found = verdict(job, tmp_path)
    assert found.kind is Kind.STUCK
    assert (found.seq, found.waiting, found.absent) == (4, (0, 1), ())
    assert "rank 0 waits in all_reduce #4 of 640 float32" in found.sentence
    assert "rank 1 waits in all_reduce #4 of 704 float32" in found.sentence


def test_all_ranks_in_the_same_collective_are_stalled(tmp_path: Path) -> None:
    procs = pair([])
    job = Job([replace(p, program=[*p.program[:5], Await("never", "x.py:1 f")]) for p in procs])
    for proc in procs:
        for i in range(20):
            wait = {"g": 0, "seq": 4, "op": "all_reduce", "dtype": "Float", "n": 64}
            line = {"c": {"0": [4, 3]}, "w": wait, "at": ["zero.py:5 step"]}
            job.add(proc, job.until + i, k="pulse", **line)
    assert verdict(job, tmp_path).kind is Kind.STALLED


def test_a_stir_while_the_job_is_stopped_does_not_hide_the_hang(tmp_path: Path) -> None:
    job = Job(incident())
    c = {"0": [19, 19], "1": [6, 6]}
    job.add(
        job.procs[3], job.until + 0.5, k="pulse", c=c, beat=0, cpu=9.0, park=None, at=["core.py:1 shutdown"]
    )
    files_alone = verdict(job, tmp_path)
    assert files_alone.kind is Kind.STUCK
    assert "rank 1 issued 19 and is idle in _process_input_queue" in files_alone.sentence
    running = verdict(job, tmp_path, now=job.until + 0.5)
    assert running.kind is Kind.INCOMPLETE


def test_a_wait_that_fails_while_the_job_is_stopped_does_not_hide_the_hang(tmp_path: Path) -> None:
    """The peer is ended first: the collective fails, and before the stack shows it the process is killed."""
    job = Job(incident())
    waiting = job.procs[2]
    last = json.loads(job.files[job.name(waiting)][-1][1])
    assert last["w"]["seq"] == 20
    t = last["t"] + 0.9
    more = {k: v for k, v in last.items() if k not in ("w", "t")}
    job.add(waiting, t, **{**more, "c": {g: [i, i] for g, (i, _) in last["c"].items()}})
    files_alone = verdict(job, tmp_path)
    assert files_alone.kind is Kind.STUCK
    assert "rank 0 waits in all_reduce #20" in files_alone.sentence
    assert verdict(job, tmp_path, now=t).kind is Kind.INCOMPLETE


def test_counts_that_move_on_take_a_hang_back(tmp_path: Path) -> None:
    job = Job(pair([Work(10, "reward.py:1 score", "read", cpu=0.0)]))
    assert verdict(job, tmp_path / "a", at=START + 9).kind is Kind.STUCK
    assert verdict(job, tmp_path / "b").kind is Kind.IN_STEP


def test_groups_that_wait_for_each_other(tmp_path: Path) -> None:
    both = ((0, 1),)
    orders = [("trainer.world", "trainer.zero"), ("trainer.zero", "trainer.world")]
    procs = [
        Proc("trainer", "rank", rank, {"trainer.world": (*both, rank), "trainer.zero": (*both, rank)},
             [Pass("train begin"), *[Issue(name, AR) for name in order], Pass("train end")])
        for rank, order in enumerate(orders)
    ]  # fmt: skip
    found = verdict(Job(procs), tmp_path)
    assert found.kind is Kind.STUCK
    assert "rank 1 issued 0 and waits in all_reduce #1 of 64 float32 of group trainer.zero" in found.sentence
    assert found.consequences == ("trainer.zero: rank 1 waits for rank 0, which waits in trainer.world",)


def test_stuck_among_those_who_have_a_ledger(tmp_path: Path) -> None:
    world = (0, 1, 2)
    procs = []
    for r in world:
        program: list[Action] = [Pass("train begin"), Issue("trainer.world", AR)]
        if r == 1:
            program.insert(1, Await("never", "x.py:1 f"))
        procs.append(Proc("trainer", "rank", r, {"trainer.world": (world, r)}, program))
    job = Job(procs)
    found = verdict(job, tmp_path / "a", without=[Job.name(procs[2])])
    assert found.kind is Kind.STUCK
    assert [v.state for v in found.ranks] == ["waiting", "absent", "missing"]
    assert "no ledger of rank 2 of 3" in str(found.problems[0])
    unknown = verdict(job, tmp_path / "b", without=[Job.name(procs[1])])
    assert unknown.kind is Kind.INCOMPLETE


def test_a_trainer_that_dies_of_a_hang_it_waited_for(tmp_path: Path) -> None:
    """The watchdog's way: the hang ends in an exception, and the trainer ends without `train end`."""
    job = Job(incident())
    for proc in job.procs[:2]:
        job.add(proc, job.until + 1, k="pulse", c={}, at=["trainer.py:9 fail"])
        job.add(proc, job.until + 1, k="end")
    found = verdict(job, tmp_path)
    assert found.kind is Kind.DIVERGED
    assert found.group is not None
    assert (found.group.name, found.seq, found.waiting, found.absent) == ("rollout.dp", 20, (0,), (1,))


def test_a_trainer_that_fails_at_once_is_no_claim(tmp_path: Path) -> None:
    procs = pair([])
    procs[1].program = procs[1].program[:5]
    job = Job(procs, tail=1.0)
    found = verdict(job, tmp_path)
    assert found.kind is Kind.INCOMPLETE
    assert "trainer rank 1 ended before `train end`" in found.sentence
