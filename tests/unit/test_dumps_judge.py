"""Dumps into verdicts: each defect gets the verdict it must, and names the rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dump_files import CULPRIT, DEFECTS, WORLD, Rank, behind, job, name_of, step, torch_pickle, write
from typer.testing import CliRunner

from lockstep.cli import app
from lockstep.dumps import judge, read_directory
from lockstep.dumps.errors import MAX_TOLD
from lockstep.verdict import Kind, Verdict

DATA = Path(__file__).parent.parent / "data" / "dumps"
_NAMED = {"behind", "size", "output_size", "kind", "dtype", "order", "long_ago"}


def verdict_on(ranks: dict[int, Rank], folder: Path) -> Verdict:
    write(ranks, folder)
    return judge(read_directory(folder))


@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_gets_its_verdict(name: str, tmp_path: Path) -> None:
    defect, expected = DEFECTS[name]
    ranks = job(8, 60, start=0 if name == "lone_send" else 500)
    defect(ranks)
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.kind.value == expected, verdict.sentence
    if name in _NAMED:
        assert verdict.absent + verdict.odd == (CULPRIT,) or f"rank {CULPRIT} waits in" in verdict.sentence
        assert verdict.group is not None
        assert verdict.group.name == "default_pg"
        assert verdict.seq == 37


def test_who_waits_where_and_who_is_absent(tmp_path: Path) -> None:
    ranks = job(8, 60)
    behind(ranks)
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.sentence == (
        "group default_pg (8 ranks): ranks 0-4, 6-7 wait in all_reduce #37 of 8 float32, "
        "issued at model/parallel.py:41; "
        "rank 5 has not issued #37: its last is #36 at model/parallel.py:41"
    )
    assert verdict.waiting == (0, 1, 2, 3, 4, 6, 7)
    assert verdict.side is None


def test_ranks_in_the_sentence_are_those_of_the_job(tmp_path: Path) -> None:
    ranks = job(8, 60)
    for r, rank in ranks.items():
        if r in (4, 6, 7):
            rank.issue(name_of(rank, "tp"), "all_reduce", 8, state="scheduled")
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.kind is Kind.STUCK
    assert "ranks 4, 6-7 wait" in verdict.sentence
    assert verdict.absent == (1,)
    assert verdict.group is not None
    assert verdict.group.ranks[1] == 5


def test_a_group_that_waits_for_another_is_a_consequence(tmp_path: Path) -> None:
    ranks = job(8, 60)
    for r, rank in ranks.items():
        if r in (4, 6, 7):
            rank.issue(name_of(rank, "tp"), "all_reduce", 8, state="scheduled")
        elif r != 5:
            rank.issue(WORLD, "all_reduce", 8, state="scheduled")
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.group is not None
    assert verdict.group.name == "tp"
    assert any(text.startswith("default_pg: ranks 0-3 wait") for text in verdict.consequences)


def test_real_gloo_dumps(tmp_path: Path) -> None:
    verdict = judge(read_directory(DATA / "gloo-torch-2.8"))
    assert verdict.kind is Kind.STUCK
    assert (
        "rank 0 waits in all_reduce #29 of 4 float32, issued at user/mk.py:7; rank 1 has not issued #29"
        in verdict.sentence
    )
    assert any("taken to be the ranks that recorded it" in text for text in verdict.consequences)


def test_dumps_made_at_different_moments_are_no_claim(tmp_path: Path) -> None:
    ranks = job(8, 60)
    step(ranks[0], 60)
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.kind is Kind.INCOMPLETE
    assert "different moments" in verdict.sentence


def test_a_torn_file_is_a_problem_and_a_proven_hang_is_still_one(tmp_path: Path) -> None:
    ranks = job(8, 60)
    behind(ranks)
    write(ranks, tmp_path)
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(path.read_bytes()[:3000])
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.STUCK
    assert verdict.absent == (CULPRIT,)
    assert "rank 3 has no whole dump" in verdict.sentence
    assert any("byte" in problem.what for problem in verdict.problems)


def test_a_rank_that_never_used_the_group_is_absent(tmp_path: Path) -> None:
    ranks = {r: Rank(r, {"0": ("default_pg", [0, 1])}) for r in (0, 1)}
    ranks[0].issue("0", "all_reduce", state="scheduled")
    ranks[1].groups["1"] = ("other", [1, 2])
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.kind is Kind.STUCK
    assert "rank 1 has not issued #1: its last is none" in verdict.sentence


def test_a_group_that_fell_out_of_a_ring_is_no_proof(tmp_path: Path) -> None:
    ranks = job(8, 60, start=500)
    for rank in ranks.values():
        rank.entries = [e for e in rank.entries if rank.rank != 5 or e["process_group"][0] != WORLD]
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.kind is Kind.INCOMPLETE
    assert "may have been overwritten" in verdict.sentence


def test_a_rank_whose_dump_lacks_the_members_is_one_if_a_peer_says_so(tmp_path: Path) -> None:
    ranks = job(8, 60)
    behind(ranks)
    write(ranks, tmp_path)
    top = ranks[2].top()
    del top["pg_config"][WORLD]
    (tmp_path / "nccl_trace_rank_2").write_bytes(torch_pickle(top))
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.STUCK
    assert verdict.group is not None
    assert len(verdict.group.ranks) == 8
    assert verdict.absent == (CULPRIT,)
    assert not verdict.problems


def test_groups_of_one_name_are_told_apart(tmp_path: Path) -> None:
    ranks = {r: Rank(r, {"0": ("dp", [0, 1]), "7": ("dp", [0, 1])}) for r in (0, 1)}
    for r, rank in ranks.items():
        rank.issue("0", "all_reduce")
        rank.issue("7", "broadcast", 8 + r, state="scheduled")
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.group is not None
    assert verdict.group.name == "dp#2"


def test_prefixes_are_worlds_of_their_own(tmp_path: Path) -> None:
    for prefix in ("rollout_", "trainer_"):
        write(job(4, 20), tmp_path, prefix=prefix)
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.IN_STEP
    assert verdict.sentence.startswith("8 dumps")
    assert "rollout_default_pg 12" in verdict.sentence


def test_two_dumps_of_one_rank_are_a_problem(tmp_path: Path) -> None:
    ranks = job(4, 20)
    write(ranks, tmp_path)
    (tmp_path / "nccl_trace_rank_2.json").write_bytes(ranks[2].json())
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.INCOMPLETE
    assert "a second dump of rank 2" in verdict.sentence


@pytest.mark.parametrize(("n", "kind"), [(1024, Kind.STALLED), (512, Kind.STUCK)])
def test_both_sides_of_a_transfer(n: int, kind: Kind, tmp_path: Path) -> None:
    ranks = job(4, 20)
    ranks[0].transfer(WORLD, "send 0->1", state="scheduled")
    ranks[1].transfer(WORLD, "recv 1<-0", n, state="scheduled")
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.kind is kind, verdict.sentence


def test_a_transfer_comes_before_the_group_that_waits_for_its_rank(tmp_path: Path) -> None:
    ranks = job(8, 60)
    behind(ranks)
    ranks[5].transfer(WORLD, "recv 5<-4", state="scheduled")
    verdict = verdict_on(ranks, tmp_path)
    assert verdict.kind is Kind.STUCK
    assert "rank 5 waits in recv #1 of 1024 float32 from rank 4" in verdict.sentence
    assert "default_pg: ranks 0-4, 6-7 wait for rank 5" in verdict.consequences


@pytest.mark.parametrize(
    ("name", "code"), [("in_step", 0), ("behind", 1), ("long_ago", 1), ("stalled", 3), ("missing_dump", 4)]
)
def test_the_command(name: str, code: int, tmp_path: Path) -> None:
    ranks = job(8, 60)
    DEFECTS[name][0](ranks)
    write(ranks, tmp_path)
    result = CliRunner().invoke(app, ["dumps", str(tmp_path)])
    assert result.exit_code == code
    assert "for 0.0 s" not in result.output
    data = CliRunner().invoke(app, ["dumps", str(tmp_path), "--json"])
    assert data.exit_code == code
    assert json.loads(data.stdout)["kind"] == DEFECTS[name][1]


def test_the_command_on_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["dumps", str(tmp_path)])
    assert result.exit_code == 2


@pytest.mark.parametrize("form", ["pickled", "json"])
def test_a_difference_in_the_readable_part_of_a_damaged_dump_is_told(form: str, tmp_path: Path) -> None:
    ranks = {r: Rank(r, {"0": ("default_pg", [0, 1])}) for r in (0, 1)}
    for r, rank in ranks.items():
        rank.issue("0", "all_reduce")
        rank.issue("0", "broadcast", 8 + r)
        for _ in range(40):
            rank.issue("0", "all_reduce")
        data: bytes = getattr(rank, form)()
        (tmp_path / f"rank_{r}").write_bytes(data if r else data[: len(data) // 2])
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.DIVERGED
    assert verdict.seq == 2
    assert any("damaged: " in problem.what for problem in verdict.problems)


@pytest.mark.parametrize("torn", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", ["in_step", "stalled", "all_to_all"])
def test_a_damaged_dump_never_gives_a_clean_answer(name: str, torn: tuple[int, ...], tmp_path: Path) -> None:
    ranks = job(2, 60, tp=2)
    DEFECTS[name][0](ranks)
    write(ranks, tmp_path)
    for r in torn:
        path = tmp_path / f"nccl_trace_rank_{r}"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.INCOMPLETE
    assert "damaged: byte" in verdict.sentence


def test_a_rank_that_is_only_in_the_lost_part_of_a_damaged_dump_is_not_called_absent(tmp_path: Path) -> None:
    ranks = job(2, 60, tp=2)
    for rank in ranks.values():
        rank.issue(WORLD, "all_reduce", 8, state="scheduled")
    ranks[0].transfer(WORLD, "send 0->1", state="scheduled")
    ranks[1].transfer(WORLD, "recv 1<-0", state="scheduled")
    write(ranks, tmp_path)
    path = tmp_path / "nccl_trace_rank_1"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.INCOMPLETE, verdict.sentence
    assert verdict.absent == ()


def test_a_wait_in_the_readable_part_of_a_damaged_dump_is_one(tmp_path: Path) -> None:
    ranks = job(2, 60, tp=2)
    ranks[0].issue(WORLD, "all_reduce", 8, state="scheduled")
    write(ranks, tmp_path)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(path.read_bytes()[:-1])
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.STUCK
    assert verdict.absent == (1,)


def test_a_hang_shows_a_rank_whose_dump_is_damaged_as_one_of_which_nothing_is_known(tmp_path: Path) -> None:
    ranks = {r: Rank(r, {"0": ("default_pg", [0, 1, 2])}) for r in range(3)}
    for r, rank in ranks.items():
        rank.issue("0", "all_reduce")
        if r != 1:
            rank.issue("0", "all_reduce", state="scheduled")
        rank.issue("0", "all_reduce", state="scheduled") if r == 2 else None
    write(ranks, tmp_path)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(path.read_bytes()[:-1])
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.STUCK
    assert verdict.absent == (1,)
    assert "rank 0 has no whole dump" in verdict.sentence


def test_missing_dumps_are_one_problem_a_group_and_a_long_list_is_cut(tmp_path: Path) -> None:
    groups = {f"g{i}": (f"tp {i}", [0, *range(2, 1000)]) for i in range(300)}
    rank = Rank(0, groups)
    for name in groups:
        rank.issue(name, "all_reduce")
    verdict = verdict_on({0: rank}, tmp_path)
    assert verdict.kind is Kind.INCOMPLETE
    assert verdict.problems[0].what == "group tp 0: no dump of ranks 2-999 of 999"
    assert len(verdict.problems) == MAX_TOLD + 1
    assert verdict.problems[-1].what == "and 44 problems more"


def test_groups_beyond_the_limit_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = job(4, 20, tp=2)
    write(ranks, tmp_path)
    monkeypatch.setattr("lockstep.dumps.ledgers.MAX_MEMBERS", 6)
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.INCOMPLETE
    assert "1 groups are left out: expected 6 ranks in all groups together" in verdict.sentence


def test_a_rank_beyond_the_limit_does_not_make_a_world_of_its_size(tmp_path: Path) -> None:
    rank = Rank(0, {"0": ("default_pg", [0, 1])}, backend="gloo")
    rank.issue("0", "all_reduce")
    for name in ("fr_0", "fr_9999999"):
        (tmp_path / name).write_bytes(rank.pickled())
    verdict = judge(read_directory(tmp_path))
    assert verdict.kind is Kind.INCOMPLETE
    assert any("rank 9999999: expected ranks below" in problem.what for problem in verdict.problems)
    assert len(verdict.ranks) <= 2
