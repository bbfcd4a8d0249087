"""What must hold for every job, every moment, and every kind of damage."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import AG, AR, RS, START, Issue, Job, Pass, Proc, Work, incident, trainers, whole_job

from lockstep.record import Ledger, read_directory
from lockstep.report import to_json
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind, compare

few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
WRONG = {Kind.DIVERGED, Kind.STUCK}


@contextmanager
def written(job: Job, **how: Any) -> Iterator[list[Ledger]]:
    with tempfile.TemporaryDirectory() as directory:
        yield read_directory(job.write(Path(directory), **how))


pauses = st.one_of(
    st.builds(Work, st.floats(0.01, 30), st.just("a.py:1 run"), st.none(), st.floats(0.5, 1)),
    st.builds(Work, st.floats(0.01, 50), st.just("a.py:2 sleep"), st.just("sleep"), st.just(0.0)),
    st.builds(Work, st.floats(0.01, 3), st.just("a.py:3 read"), st.just("read"), st.just(0.0)),
)


@st.composite
def uneven_jobs(draw: st.DrawFn) -> Job:
    """Correct jobs whose ranks are slow in different places."""
    procs = whole_job(2)
    for _ in range(draw(st.integers(0, 4))):
        program = draw(st.sampled_from(procs)).program
        program.insert(draw(st.integers(0, len(program) - 1)), draw(pauses))
    return Job(procs, seed=draw(st.integers(0, 9)))


@few
@given(uneven_jobs(), st.floats(0, 1), st.integers(0, 9))
def test_a_correct_job_is_never_called_wrong(job: Job, moment: float, seed: int) -> None:
    at = START + moment * (job.until - START)
    chance = random.Random(seed)
    with written(job, at=at, lag=lambda: chance.uniform(0, 0.5)) as ledgers:
        assert judge(ledgers).kind not in WRONG
        assert judge(ledgers, now=at).kind not in WRONG
    with written(job) as ledgers:
        assert judge(ledgers).kind is Kind.IN_STEP


@few
@given(uneven_jobs(), st.data())
def test_cut_files_of_a_correct_job(job: Job, data: st.DataObject) -> None:
    cut = data.draw(st.sampled_from(sorted(job.files)))

    def change(name: str, content: bytes) -> bytes:
        return content[: data.draw(st.integers(0, len(content)))] if name == cut else content

    with written(job, change=change) as ledgers:
        verdict = judge(ledgers)
        assert verdict.kind not in WRONG
        if any(p.torn for x in ledgers if x.label.startswith("trainer") for p in x.problems):
            assert verdict.kind is Kind.INCOMPLETE


@few
@given(st.data())
def test_cut_files_of_a_wrong_job_are_never_in_step(data: st.DataObject) -> None:
    procs = four_trainers()
    program = procs[data.draw(st.integers(0, 3))].program
    at = data.draw(st.sampled_from(_issues(program)))
    program[at] = Issue(program[at].group, ("all_to_all", "Float", 3))  # type: ignore[union-attr]
    cuts = {name: data.draw(st.integers(0, 3000)) for name in Job(procs).files}

    with written(Job(procs)) as ledgers:
        assert judge(ledgers).kind is Kind.DIVERGED
    with written(Job(procs), change=lambda name, content: content[: len(content) - cuts[name]]) as ledgers:
        assert judge(ledgers).kind is not Kind.IN_STEP


@few
@given(st.binary(max_size=40), st.integers(0, 10**6), st.integers(0, 40))
def test_no_damage_raises(junk: bytes, place: int, removed: int) -> None:
    def change(_: str, content: bytes) -> bytes:
        at = place % len(content)
        return content[:at] + junk + content[at + removed :]

    with written(Job(incident(1)), change=change) as ledgers:
        verdict = judge(ledgers)
        to_json(verdict)
        assert verdict.sentence


@few
@given(st.sampled_from(["in step", "hangs", "differs"]), st.booleans(), st.data())
def test_whole_lines_that_are_missing_or_swapped_are_no_claim(
    what: str, swap: bool, data: st.DataObject
) -> None:
    procs = incident() if what == "hangs" else whole_job()
    if what == "differs":
        at = data.draw(st.sampled_from(_issues(procs[1].program)))
        procs[1].program[at] = Issue(procs[1].program[at].group, ("all_to_all", "Float", 3))  # type: ignore[union-attr]
    job = Job(procs)
    name = data.draw(st.sampled_from(sorted(job.files)))
    last = len(job.files[name]) - 1
    first, second = sorted(data.draw(st.sets(st.integers(0, last - 1), min_size=2, max_size=2)))

    def damage(file: str, content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        if file == name and swap:
            lines[first], lines[second] = lines[second], lines[first]
        elif file == name:
            del lines[first:second]
        return b"".join(lines)

    with written(job, change=damage, numbered=True) as ledgers:
        verdict = judge(ledgers)
        path = next(x.path for x in ledgers if x.path.endswith(name))
    assert verdict.kind is Kind.INCOMPLETE
    assert f"no claim: {path}:{first + 1}: " in verdict.sentence
    assert "lines are missing or not in their order" in verdict.sentence
    with written(job, numbered=True) as ledgers:
        assert judge(ledgers).kind is {"in step": Kind.IN_STEP, "hangs": Kind.STUCK}.get(what, Kind.DIVERGED)


@few
@given(st.permutations(range(4)), st.booleans())
def test_the_order_of_the_files_does_not_matter(order: list[int], hangs: bool) -> None:
    with written(Job(incident() if hangs else whole_job())) as ledgers:
        assert to_json(judge([ledgers[i] for i in order])) == to_json(judge(ledgers))


@few
@given(st.sets(st.integers(0, 3), min_size=1, max_size=3))
def test_a_missing_ledger_is_no_claim(gone: set[int]) -> None:
    job = Job(whole_job(1))
    with written(job, without=[sorted(job.files)[i] for i in gone]) as ledgers:
        assert judge(ledgers).kind is Kind.INCOMPLETE


@few
@given(st.floats(0, 11.9), st.floats(1, 8))
def test_a_hang_is_called_after_the_settling_time_and_not_before(since: float, settle_s: float) -> None:
    job = Job(incident())
    hung = job.until - 12.0
    with written(job, at=hung + since) as ledgers:
        kind = judge(ledgers, now=hung + since, settle_s=settle_s).kind
    if since < settle_s:
        assert kind is not Kind.STUCK
    elif since > settle_s + 4:  # a pulse has to see it, and every process has to have a pulse after the time
        assert kind is Kind.STUCK


# -- one collective, on one rank, dropped, issued twice, changed, or swapped with the next


def four_trainers() -> list[Proc]:
    procs = trainers(3, 4, generate=False)
    for proc in procs:
        proc.groups.pop("weight-sync", None)
        proc.program[2:2] = [Issue("trainer.zero", RS), Issue("trainer.zero", AG), Issue("trainer.world", AR)]
    return procs


def _issues(program: list[Any]) -> list[int]:
    return [i for i, action in enumerate(program) if isinstance(action, Issue)]


@st.composite
def faults(draw: st.DrawFn) -> tuple[list[Proc], int, str, str]:
    procs = four_trainers()
    rank = draw(st.integers(0, 3))
    program = procs[rank].program
    at = draw(st.sampled_from(_issues(program)))
    action = program[at]
    assert isinstance(action, Issue)
    how = draw(st.sampled_from(["drop", "twice", "resize", "retype", "swap"]))
    op, dtype, n = action.op
    if how == "drop":
        del program[at]
    elif how == "twice":
        program.insert(at, action)
    elif how == "resize":
        program[at] = Issue(action.group, (op, dtype, (n or 0) + 1))
    elif how == "retype":
        program[at] = Issue(action.group, (op, "Half", n))
    else:
        later = [i for i in _issues(program) if i > at and program[i].group == action.group]  # type: ignore[union-attr]
        if (
            not later
            or program[later[0]] == action
            or any(isinstance(a, Pass) for a in program[at : later[0]])
        ):
            program[at] = Issue(action.group, ("all_to_all", dtype, n))
        else:
            program[at], program[later[0]] = program[later[0]], program[at]
    return procs, rank, action.group, how


def first_parting(job: Job, group: str) -> int | None:
    """By counting on fingers: the number at which the ranks part, at the first boundary that shows it, or in
    what they have issued since.
    """
    at_end: list[list[Any]] = []
    at_boundary: dict[tuple[str, int], dict[int, list[Any]]] = {}
    for run in job._runs:
        issued: list[Any] = []
        passed: dict[str, int] = {}
        for _, kind, what in run.story:
            if kind == "issued" and what[0].group == group:
                issued.append(what[0].op)
            elif kind == "boundary":
                passed[what.name] = passed.get(what.name, 0) + 1
                at_boundary.setdefault((what.name, passed[what.name]), {})[run.proc.rank] = list(issued)
        at_end.append(issued)
    for streams in at_boundary.values():
        lists = list(streams.values())
        for i in range(max(len(x) for x in lists)):
            if len({x[i] if i < len(x) else None for x in lists}) > 1:
                return i + 1
    for i, operations in enumerate(zip(*at_end)):  # noqa: B905 - as far as all go
        if len(set(operations)) > 1:
            return i + 1
    return None


@settings(few, max_examples=100)
@given(faults())
def test_one_wrong_collective_is_found(fault: tuple[list[Proc], int, str, str]) -> None:
    procs, rank, group, how = fault
    job = Job(procs)
    with written(job) as ledgers:
        verdict = judge(ledgers)
    assert verdict.kind is (Kind.STUCK if job.hung() else Kind.DIVERGED)
    assert verdict.group is not None
    assert verdict.odd == (rank,) or (rank,) in (verdict.absent, verdict.waiting)
    if how == "twice" and verdict.group.name != group:
        # One more in this group, or one less in the other: by the counts of a hang these are the same.
        assert first_parting(job, group) is None
        assert any(text.startswith(f"{group}: rank {rank} waits for ") for text in verdict.consequences)
        return
    assert verdict.group.name == group
    counts = [sum(k == "issued" and w[0].group == group for _, k, w in run.story) for run in job._runs]
    assert verdict.seq == (first_parting(job, group) or min(counts) + 1)


@few
@given(faults(), st.floats(0.0, 1.0), st.integers(0, 9))
def test_boundaries_in_one_order_are_compared_as_those_in_any_order(
    fault: tuple[list[Proc], int, str, str], moment: float, seed: int
) -> None:
    job = Job(fault[0])
    at = START + moment * (job.until - START)
    chance = random.Random(seed)
    with written(job, at=at, lag=lambda: chance.uniform(0, 0.5)) as ledgers:
        quick = [to_json(judge(ledgers, now=now)) for now in (None, at)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compare, "_in_one_order", lambda *_: False)
            assert [to_json(judge(ledgers, now=now)) for now in (None, at)] == quick


def test_the_faults_include_hangs_and_differences() -> None:
    swapped = four_trainers()
    swapped[1].program[2:4] = reversed(swapped[1].program[2:4])
    assert not Job(swapped).hung()
    dropped = four_trainers()
    del dropped[1].program[1]
    assert Job(dropped).hung()
    assert AR in {a.op for a in dropped[0].program if isinstance(a, Issue)}
