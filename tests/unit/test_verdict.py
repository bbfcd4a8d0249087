from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ledgers import (
    AG,
    AR,
    BC,
    RS,
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
    trainers,
    verdict,
    whole_job,
)

from lockstep.report import to_json
from lockstep.report.terminal import render
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind, Verdict

# -- in step


def test_a_whole_job_is_in_step(tmp_path: Path) -> None:
    found = verdict(Job(whole_job()), tmp_path)
    assert found.kind is Kind.IN_STEP
    assert found.sentence == (
        "4 processes, 3 steps: every rank issued the same collectives: "
        "rollout.dp 27, trainer.world 8, trainer.zero 12, weight-sync 6"
    )
    assert found.passed["trainer rank"]["step"] == 3
    assert found.passed["rollout engine core"]["wave end"] == 3
    assert not found.problems
    assert not found.running


def test_a_terminated_rollout_may_have_a_torn_last_line_and_a_trainer_not(tmp_path: Path) -> None:
    job = Job(whole_job())

    def tear(side: str) -> Verdict:
        def change(name: str, data: bytes) -> bytes:
            return data[:-3] if name.startswith(side) else data

        return verdict(job, tmp_path / side, change=change)

    assert tear("rollout").kind is Kind.IN_STEP
    torn = tear("trainer")
    assert torn.kind is Kind.INCOMPLETE
    assert "torn last line" in torn.sentence


def test_a_rollout_ledger_that_stops_early_proves_nothing(tmp_path: Path) -> None:
    job = Job([*trainers(3), *[replace(p, dies=0.4) for p in whole_job()[2:]]])
    found = verdict(job, tmp_path)
    assert found.kind is Kind.INCOMPLETE
    assert any("weight-sync: last seen with" in str(p) for p in found.problems)


def test_a_rollout_ledger_that_lacks_what_its_peer_has_proves_nothing(tmp_path: Path) -> None:
    job = Job(whole_job())
    name = Job.name(job.procs[2])
    job.files[name] = [(t, line) for t, line in job.files[name] if b'"wave end", "n": 3' not in line]
    found = verdict(job, tmp_path / "a")
    assert found.kind is Kind.INCOMPLETE
    assert "lacks boundary wave end 3, which a peer has passed" in found.sentence
    slow = trainers(3)
    for proc in slow:
        proc.program.insert(-1, Work(9.0))
    stopped = Job([*slow, *[replace(p, dies=3.0) for p in whole_job()[2:]]])
    found = verdict(stopped, tmp_path / "b")
    assert found.kind is Kind.INCOMPLETE
    assert "before the end of training: expected pulses until then" in found.sentence


def test_no_trainer_or_no_ledger_is_no_claim(tmp_path: Path) -> None:
    assert judge([]).sentence == "no claim: no ledger of a trainer rank"
    assert verdict(Job(whole_job()[2:]), tmp_path).kind is Kind.INCOMPLETE


# -- diverged


def changed(rank: int, action: Issue, *, to: list[Action], nth: int = 0, ranks: int = 2) -> list[Proc]:
    """Trainers without a rollout; on one rank the nth `action` is replaced."""
    procs = trainers(3, ranks, generate=False)
    for proc in procs:
        proc.groups.pop("weight-sync", None)
    program = procs[rank].program
    at = [i for i, x in enumerate(program) if x == action][nth]
    program[at : at + 1] = to
    return procs


@pytest.mark.parametrize(
    ("was", "instead", "seq", "told"),
    [
        (
            AG,
            [AR],
            4,
            "rank 0 issued all_gather #4 of 2000 bfloat16; rank 1 issued all_reduce #4 of 64 float32",
        ),
        (RS, [("reduce_scatter", "BFloat16", 7)], 1, "rank 1 issued reduce_scatter #1 of 7 bfloat16"),
        (RS, [("reduce_scatter", "Half", 1000)], 1, "rank 1 issued reduce_scatter #1 of 1000 float16"),
    ],
)
def test_the_first_collective_that_differs(
    tmp_path: Path, was: tuple[str, str, int], instead: list[tuple[str, str, int]], seq: int, told: str
) -> None:
    procs = changed(1, Issue("trainer.zero", was), to=[Issue("trainer.zero", op) for op in instead])
    found = verdict(Job(procs), tmp_path, at=START + 0.6, now=START + 0.6)
    assert found.kind is Kind.DIVERGED
    assert found.group is not None
    assert (found.group.name, found.seq, str(found.boundary)) == ("trainer.zero", seq, "step 1")
    assert str(found.agreed) == "train begin 1"
    assert told in found.sentence


def test_most_ranks_outvote_one(tmp_path: Path) -> None:
    procs = changed(2, Issue("trainer.zero", AG), to=[Issue("trainer.zero", RS)], nth=1, ranks=4)
    found = verdict(Job(procs), tmp_path)
    assert (found.kind, found.odd, found.seq) == (Kind.DIVERGED, (2,), 8)
    assert [v.state for v in found.ranks] == ["done", "done", "differs", "done"]
    assert (
        "ranks 0-1, 3 issued all_gather #8 of 2000 bfloat16; rank 2 issued reduce_scatter #8"
        in found.sentence
    )


def test_a_running_job_is_compared_from_the_last_proof_on(tmp_path: Path) -> None:
    procs = changed(1, Issue("trainer.zero", AG), to=[Issue("trainer.zero", RS)], nth=2)
    job = Job(procs)
    moments = [t for t, line in job.files[Job.name(procs[1])] if b'"step", "n"' in line]
    kinds = [verdict(job, tmp_path / str(t), at=t + 0.01, now=t + 0.01).kind for t in moments]
    assert kinds == [Kind.INCOMPLETE, Kind.INCOMPLETE, Kind.DIVERGED]


def test_without_streams_the_boundaries_are_named(tmp_path: Path) -> None:
    procs = changed(1, Issue("trainer.zero", AG), to=[Issue("trainer.zero", AR)], nth=1)

    def without_streams(_: str, data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.splitlines()]
        return b"".join(json.dumps({k: v for k, v in x.items() if k != "s"}).encode() + b"\n" for x in lines)

    found = verdict(Job(procs), tmp_path, change=without_streams)
    assert (found.kind, found.seq) == (Kind.DIVERGED, None)
    assert "group trainer.zero (2 ranks) differs, after step 1 and by step 2" in found.sentence


def test_a_hang_that_began_as_a_difference_says_where(tmp_path: Path) -> None:
    """Rank 2 issues one all-reduce more, passes step 2 with it, and waits alone at the end."""
    step: list[Action] = [Issue("trainer.world", AR), Issue("trainer.world", AR)]
    steps = [*step, Pass("step", 1), *step, Pass("step", 2), Issue("trainer.world", RS), Pass("train end")]
    odd = [*steps[:4], *step[:1], *steps[4:]]
    procs = [
        Proc("trainer", "rank", r, {"trainer.world": ((0, 1, 2), r)}, odd if r == 2 else steps)
        for r in range(3)
    ]
    found = verdict(Job(procs), tmp_path)
    assert found.kind is Kind.STUCK
    assert found.group is not None
    assert (found.group.name, found.seq, found.odd) == ("trainer.world", 5, (2,))
    assert found.waiting == (2,)
    assert "rank 2 waits in reduce_scatter #6 of 1000 bfloat16" in found.sentence
    assert (
        "(3 ranks) differs from #5 on, after step 1 and by step 2: ranks 0-1 issued 4; rank 2 issued"
        in found.sentence
    )


def test_counts_at_the_end(tmp_path: Path) -> None:
    job = Job(pair([]))
    name = Job.name(job.procs[0])
    end = job.files[name].pop()
    pulse = {"k": "pulse", "c": {"0": [6, 5]}, "at": ["x.py:1 f"]}
    job.add(job.procs[0], end[0], **pulse)
    job.files[name].append(end)
    found = verdict(job, tmp_path)
    assert (found.kind, found.seq, found.absent) == (Kind.DIVERGED, 6, (1,))


def test_the_last_counts_of_terminated_processes_need_time_to_differ(tmp_path: Path) -> None:
    job = Job(whole_job())
    engine, other = job.procs[2:]
    ahead = {"k": "pulse", "c": {"0": [28, 27], "1": [6, 6]}, "at": ["x.py:1 f"]}
    job.add(engine, job.until, **ahead)
    soon = verdict(job, tmp_path / "soon")
    assert soon.kind is Kind.INCOMPLETE
    assert "another rank with 28" in soon.sentence
    for i in range(1, 8):
        behind = {"k": "pulse", "c": {"0": [27, 27], "1": [6, 6]}, "at": ["x.py:1 f"]}
        job.add(other, job.until + i, **behind)
    found = verdict(job, tmp_path / "late")
    assert (found.kind, found.seq) == (Kind.DIVERGED, 28)


def test_the_weight_sync_group_spans_both_sides(tmp_path: Path) -> None:
    procs = whole_job()
    at = [i for i, x in enumerate(procs[0].program) if x == Issue("weight-sync", BC)][2]
    procs[0].program[at] = Issue("weight-sync", ("broadcast", "BFloat16", 511))
    found = verdict(Job(procs), tmp_path)
    assert found.kind is Kind.DIVERGED
    assert found.group is not None
    assert (found.group.name, found.side, found.seq, found.odd) == ("weight-sync", "both", 3, (2,))


def test_engine_cores_that_wait_for_weights_from_an_absent_trainer(tmp_path: Path) -> None:
    procs = whole_job()
    at = [i for i, x in enumerate(procs[0].program) if x == Issue("weight-sync", BC)][2]
    procs[0].program.insert(at, Await("never", "vllm_client.py:4 update", "receive"))
    found = verdict(Job(procs), tmp_path)
    assert found.kind is Kind.STUCK
    assert found.group is not None
    assert (found.group.name, found.waiting, found.absent) == ("weight-sync", (0, 1), (2,))
    assert "rank 2 issued 2 and waits for the rollout (inside weight sync 2)" in found.sentence


# -- incomplete


def test_a_missing_ledger(tmp_path: Path) -> None:
    job = Job(whole_job())
    found = verdict(job, tmp_path, without=[Job.name(job.procs[1])])
    assert found.kind is Kind.INCOMPLETE
    assert "no ledger of rank 1 of 2" in found.sentence


@pytest.mark.parametrize(
    "line", [b"\0\0\0\n", b'{"k":"lost","t":1001,"g":0,"records":2}\n', b'{"k":"error","t":1}\n']
)
def test_damage_in_the_middle(tmp_path: Path, line: bytes) -> None:
    def damage(name: str, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return (
            b"".join([*lines[:12], line, *lines[12:]]) if name.startswith("rollout-engine_core-0") else data
        )

    found = verdict(Job(whole_job()), tmp_path, change=damage)
    assert found.kind is Kind.INCOMPLETE
    assert ":13: " in found.sentence


def test_a_hidden_boundary_line_is_no_divergence(tmp_path: Path) -> None:
    def hide(name: str, data: bytes) -> bytes:
        if not name.startswith("trainer-rank-1"):
            return data
        lines = data.splitlines(keepends=True)
        at = next(i for i, x in enumerate(lines) if b'"step", "n": 3' in x)
        return b"".join([*lines[:at], b"?\n", *lines[at + 1 :]])

    assert verdict(Job(whole_job()), tmp_path, change=hide).kind is Kind.INCOMPLETE


def test_two_ledgers_for_one_rank(tmp_path: Path) -> None:
    job = Job(whole_job())
    job.files["rollout-engine_core-1-999.jsonl"] = job.files[Job.name(job.procs[3])]
    found = verdict(job, tmp_path)
    assert found.kind is Kind.INCOMPLETE
    assert "has another ledger" in found.sentence


# -- reports


def test_reports_hold_what_the_verdict_says(tmp_path: Path) -> None:
    found = verdict(Job(incident()), tmp_path)
    text = render(found, width=300)
    assert found.sentence in text
    assert "follows: trainer.world: rank 1 waits for rank 0" in text
    data = json.loads(json.dumps(to_json(found)))
    assert data["kind"] == "stuck"
    assert data["group"]["name"] == "rollout.dp"
    assert data["ranks"][0]["operation"] == "all_reduce #20 of 2 int32"


def test_square_brackets_are_not_markup(tmp_path: Path) -> None:
    found = replace(verdict(Job(whole_job(1)), tmp_path), sentence="x [red]y[/red] z")
    assert "x [red]y[/red] z" in render(found)
