"""Groups with the same ranks: which one is meant, whatever the order in which ranks make and use them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import AR, BC, Action, Issue, Job, Op, Pass, Proc, verdict

from lockstep.inside.counters import GroupTable
from lockstep.inside.group_names import Group, GroupNames
from lockstep.record import read_directory
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind, Verdict

few = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
A, B = "trainer.twin:3", "trainer.twin:4"
Uses = list[tuple[str, Op]]


def rank(number: int, made: list[str], uses: Uses, of: int = 2) -> Proc:
    """A trainer rank that declares groups of all ranks in the order of `made` and uses them."""
    groups = {name: (tuple(range(of)), number) for name in made}
    program: list[Action] = [Pass("train begin"), *(Issue(name, op) for name, op in uses), Pass("train end")]
    return Proc("trainer", "rank", number, groups, program)


def test_two_groups_used_in_opposite_order_are_stuck_and_both_are_named(tmp_path: Path) -> None:
    job = Job([rank(0, [A, B], [(A, AR), (B, AR)]), rank(1, [B, A], [(B, AR), (A, AR)])])
    found = verdict(job, tmp_path)
    assert found.kind is Kind.STUCK
    assert found.sentence == (
        "group trainer.twin (2 ranks): rank 0 waits in all_reduce #1 of 64 float32, issued at "
        "trainer.twin:3.py:7; rank 1 issued 0 and waits in all_reduce #1 of 64 float32 "
        "of group trainer.twin#2"
    )
    assert found.consequences == ("trainer.twin#2: rank 1 waits for rank 0, which waits in trainer.twin",)


def test_counts_of_different_groups_are_not_compared(tmp_path: Path) -> None:
    """Each rank declares first what it uses first, as a group that is used at once is."""
    uses: Uses = [(A, AR), (B, BC), (B, BC)]
    job = Job([rank(0, [A, B], uses), rank(1, [B, A], uses)])
    assert verdict(job, tmp_path).kind is Kind.IN_STEP


def without_ids(name: str, data: bytes) -> bytes:
    lines = [json.loads(line) for line in data.splitlines()]
    return b"".join(
        json.dumps({k: v for k, v in line.items() if k != "id" or line["k"] == "op"}).encode() + b"\n"
        for line in lines
    )


def test_without_ids_the_order_tells_groups_apart_as_before(tmp_path: Path) -> None:
    uses: Uses = [(A, AR), (B, BC), (B, BC)]
    alike = Job([rank(0, [A, B], uses), rank(1, [A, B], uses)])
    assert verdict(alike, tmp_path / "alike", change=without_ids).kind is Kind.IN_STEP
    crossed = Job([rank(0, [A, B], uses), rank(1, [B, A], uses)])
    found = verdict(crossed, tmp_path / "crossed", change=without_ids)
    assert found.kind is Kind.DIVERGED  # and wrong: older releases wrote nothing that tells


Names = dict[int, dict[str, str]]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Proc], list[tuple[str, tuple[int, ...]]]]:
    """Up to four ranks with up to four groups of one purpose; each rank makes them in an order of its own."""
    size = draw(st.integers(2, 4))
    subsets = st.lists(st.integers(0, size - 1), min_size=2, max_size=size, unique=True).map(
        lambda ranks: tuple(sorted(ranks))
    )
    groups = [(f"trainer.twin:{i}", draw(subsets)) for i in range(draw(st.integers(1, 4)))]
    ops = st.sampled_from([AR, BC, ("all_gather", "Float", 3)])
    uses = draw(st.lists(st.tuples(st.sampled_from(groups), ops), max_size=8))
    procs = []
    for number in range(size):
        mine = [group for group in groups if number in group[1]]
        made = draw(st.permutations(mine))
        program: list[Action] = [Pass("train begin")]
        program += [Issue(name, op) for (name, ranks), op in uses if number in ranks]
        places = {name: (ranks, ranks.index(number)) for name, ranks in made}
        procs.append(Proc("trainer", "rank", number, places, [*program, Pass("train end")]))
    return procs, groups


def judged(job: Job) -> Verdict:
    with tempfile.TemporaryDirectory() as directory:
        return judge(read_directory(job.write(Path(directory))))


@few
@given(jobs())
def test_ranks_may_make_and_use_their_groups_in_any_order(
    job: tuple[list[Proc], list[tuple[str, tuple[int, ...]]]],
) -> None:
    found = judged(Job(job[0]))
    assert found.kind is Kind.IN_STEP, found.sentence


@few
@given(jobs(), st.data())
def test_groups_that_one_rank_uses_in_another_order_are_stuck_and_named(
    job: tuple[list[Proc], list[tuple[str, tuple[int, ...]]]], data: st.DataObject
) -> None:
    procs, groups = job
    pairs = [
        (proc, i)
        for proc in procs
        for i, (a, b) in enumerate(zip(proc.program, proc.program[1:], strict=False))
        if isinstance(a, Issue) and isinstance(b, Issue) and a.group != b.group
    ]
    if not pairs:
        return
    proc, i = data.draw(st.sampled_from(pairs))
    proc.program[i : i + 2] = reversed(proc.program[i : i + 2])
    swapped = {action.group for action in proc.program[i : i + 2] if isinstance(action, Issue)}
    simulated = Job(procs)
    found = judged(simulated)
    assert found.kind is (Kind.STUCK if simulated.hung() else Kind.IN_STEP), found.sentence
    if not simulated.hung():
        return
    named = {name: sorted(n for n, r in groups if r == ranks).index(name) + 1 for name, ranks in groups}
    shown = {f"trainer.twin#{named[name]}" if named[name] > 1 else "trainer.twin" for name in swapped}
    assert found.group is not None
    told = " ".join([found.sentence, *found.consequences])
    assert all(name in told for name in shown)


def test_a_group_that_is_made_anew_under_its_name_has_another_id() -> None:
    lines: list[dict[str, object]] = []
    table = GroupTable(GroupNames("trainer"), lines.append)
    declare: Callable[[Group], object] = table._declare
    world = Group("trainer.world", "", "gloo", (0, 1), 0, "0")
    for group in (world, world, Group("trainer.world", "", "gloo", (0, 1), 0, "7"), world):
        declare(group)
    assert [(line["name"], line["id"]) for line in lines] == [
        ("trainer.world", "0"),
        ("trainer.world#2", "0/2"),
        ("trainer.world#3", "7"),
        ("trainer.world#4", "0/3"),
    ]


@pytest.mark.parametrize("ids", [["9", "10"], ["a" * 40, "b" * 40]])
def test_names_follow_the_order_of_the_ids(tmp_path: Path, ids: list[str]) -> None:
    made = [f"trainer.twin:{id}" for id in reversed(ids)]
    job = Job([rank(r, made, [(made[1], AR), (made[0], BC), (made[0], BC)]) for r in (0, 1)])
    assert "trainer.twin 1, trainer.twin#2 2" in verdict(job, tmp_path).sentence
