"""The probe on real gloo ranks: what it writes is what was issued."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402

from lockstep.inside.group_names import Group  # noqa: E402
from lockstep.inside.recorder import Probe  # noqa: E402
from lockstep.record import read_directory  # noqa: E402
from lockstep.verdict import Kind  # noqa: E402


def _mixed(probe: Probe | None, rank: int) -> None:
    """Operations of every kind in the world group, some of them asynchronous."""
    three, other = torch.ones(3), torch.ones(5, dtype=torch.int64)
    if probe:
        probe.boundary("train begin", 0)
    for _ in range(4):
        dist.all_reduce(three)
    dist.broadcast(other, 1)
    if probe:
        probe.boundary("step", 1)
    works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (1, 2, 2)]
    for work in works:
        work.wait()
    dist.all_gather([torch.zeros(3), torch.zeros(3)], three)
    dist.scatter(torch.zeros(3), [three, three] if rank == 0 else None)
    dist.gather(three, [torch.zeros(3), torch.zeros(3)] if rank == 0 else None)
    dist.barrier()
    if probe:
        probe.boundary("step", 2)
        probe.boundary("train end", 2)


TRUTH = [
    [],
    [("all_reduce", "Float", 3)] * 4 + [("broadcast", "Long", 5)],
    [("all_reduce", "Float", 1)]
    + [("all_reduce", "Float", 2)] * 2
    + [
        ("all_gather", "Float", 3),
        ("scatter", "Float", 3),
        ("gather", "Float", 3),
        ("barrier", "", 0),
    ],
    [],
]


def test_streams_counts_and_digests_at_boundaries_are_the_truth(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _mixed) == [0, 0]
    for rank in (0, 1):
        assert ranks.streams(tmp_path, rank) == TRUTH
        (group,) = ranks.lines(tmp_path, rank, "group")
        assert (group["name"], group["ranks"], group["rank"]) == ("trainer.world", [0, 1], rank)
        marks = [b["c"].get("0") for b in ranks.lines(tmp_path, rank, "boundary")]
        assert [m and m[0] for m in marks] == [None, 5, 12, None]
        assert marks[1][2] == {"all_reduce": 4, "broadcast": 1}
        steps = [(b["b"], b["n"], b.get("step")) for b in ranks.lines(tmp_path, rank, "boundary")]
        assert steps == [("train begin", 1, 0), ("step", 1, 1), ("step", 2, 2), ("train end", 1, 2)]
    first, second = (ranks.lines(tmp_path, rank, "boundary") for rank in (0, 1))
    assert [b["c"] for b in first] == [b["c"] for b in second]
    assert ranks.verdict(tmp_path).kind is Kind.IN_STEP
    assert all(not ledger.problems for ledger in read_directory(tmp_path))


def test_the_last_pulse_has_the_last_counts_and_the_file_ends_with_end(tmp_path: Path) -> None:
    ranks.run(tmp_path, _mixed)
    *_, pulse, end = ranks.lines(tmp_path, 0)
    assert end["k"] == "end"
    assert pulse["c"]["0"][0] == 12


def _own_count(probe: Probe | None, rank: int) -> None:
    _mixed(probe, rank)
    count = dist.group.WORLD._get_sequence_number_for_group()  # type: ignore[union-attr]
    Path(f"{_own_count.out}-{rank}").write_text(str(count))  # type: ignore[attr-defined]


def test_the_probe_issues_no_collective(tmp_path: Path) -> None:
    for probed in (True, False):
        _own_count.out = tmp_path / f"count-{probed}"  # type: ignore[attr-defined]
        assert ranks.run(tmp_path / str(probed), _own_count, probed=probed) == [0, 0]
    counts = {
        (tmp_path / f"count-{probed}-{rank}").read_text() for probed in (True, False) for rank in (0, 1)
    }
    assert counts == {"12"}


def _sends(probe: Probe, rank: int) -> None:
    t = torch.ones(3)

    def send(times: int) -> None:
        for _ in range(times):
            dist.send(t, 1) if rank == 0 else dist.recv(t, 0) if rank == 1 else None

    probe.boundary("train begin")
    send(2)
    dist.all_reduce(t)
    send(1)
    probe.boundary("step")
    for _ in range(2):
        dist.all_reduce(t)
        send(3)
    probe.boundary("step")
    send(1)
    probe.boundary("step")
    dist.broadcast(t, 0)
    probe.boundary("train end")


def test_sends_and_receives_are_not_counted(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _sends, 3) == [0, 0, 0]
    reduce, broadcast = ("all_reduce", "Float", 3), ("broadcast", "Float", 3)
    for rank in range(3):
        assert ranks.streams(tmp_path, rank) == [[], [reduce], [reduce] * 2, [], [broadcast]]
        assert ranks.lines(tmp_path, rank, "pulse")[-1]["c"]["0"][0] == 4
    assert ranks.verdict(tmp_path).kind is Kind.IN_STEP


def _monitored(probe: Probe, rank: int) -> None:
    dist.all_reduce(torch.ones(1))
    dist.monitored_barrier()
    dist.all_reduce(torch.ones(1))
    probe.boundary("train end")


def test_a_collective_without_a_record_is_counted_alike_on_all_ranks(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _monitored, 3) == [0, 0, 0]
    for rank in range(3):
        ((first, *middle, last),) = ranks.streams(tmp_path, rank)
        assert first == last == ("all_reduce", "Float", 1)
        assert set(middle) == {("unrecorded", "", None)}
    assert ranks.verdict(tmp_path).kind is Kind.IN_STEP


def _groups(probe: Probe, rank: int) -> None:
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group as stateless

    t = torch.ones(2)
    dist.all_reduce(t)
    pairs = [dist.new_group([0, 1], group_desc="pair"), dist.new_group([1, 2], group_desc="pair")]
    alone = [dist.new_group([r]) for r in range(3)]
    late = dist.new_group([2, 0, 1], group_desc="late")
    probe.boundary("step")
    for pair, members in zip(pairs, ([0, 1], [1, 2]), strict=True):
        if rank in members:
            dist.all_reduce(t, group=pair)
    dist.all_reduce(t, group=alone[rank])
    dist.broadcast(t, 0, group=late)
    probe.boundary("step")
    group = Group("trainer.stateless", "outside", "gloo", (0, 1, 2), rank)
    probe.announce(0, group)
    port = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        with __import__("socket").socket() as s:
            s.bind(("127.0.0.1", 0))
            port[0] = s.getsockname()[1]
    dist.broadcast(port, 0)
    outside = stateless("127.0.0.1", int(port), rank, 3, backend="gloo")
    for _ in range(3):
        dist.all_reduce(t, group=outside)
    counted = probe.count(Group("weight-sync", "test", "none", (0, 1, 2), rank))
    for _ in range(2):
        counted.call("broadcast", "float32", 7, lambda: None)
    probe.count(Group("alone", "test", "none", (0,), 0)).call("broadcast", "float32", 7, lambda: None)
    probe.boundary("train end")


def test_groups_made_later_sub_groups_and_groups_outside_the_registry(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    assert ranks.run(tmp_path, _groups, 3) == [0, 0, 0], [p.read_text() for p in tmp_path.glob("failed-*")]
    for rank in range(3):
        groups = {(g["name"], tuple(g["ranks"])): g["rank"] for g in ranks.lines(tmp_path, rank, "group")}
        assert groups.pop(("trainer.world", (0, 1, 2))) == rank
        assert groups.pop(("trainer.late", (0, 1, 2))) == rank
        assert groups.pop(("trainer.stateless", (0, 1, 2))) == rank
        assert groups.pop(("weight-sync", (0, 1, 2))) == rank
        pairs = {0: {(0, 1): 0}, 1: {(0, 1): 1, (1, 2): 0}, 2: {(1, 2): 1}}[rank]
        assert groups == {("trainer.pair", members): place for members, place in pairs.items()}
        assert ranks.streams(tmp_path, rank, "trainer.late") == [[], [("broadcast", "Float", 2)], []]
        assert ranks.streams(tmp_path, rank, "trainer.stateless")[2] == [("all_reduce", "Float", 2)] * 3
        assert ranks.streams(tmp_path, rank, "weight-sync")[2] == [("broadcast", "float32", 7)] * 2
    assert ranks.verdict(tmp_path).kind is Kind.IN_STEP


def _twins(probe: Probe, rank: int) -> None:
    for times in (1, 2):
        twin = dist.new_group([0, 1], group_desc="twin")
        for _ in range(times):
            dist.all_reduce(torch.ones(1), group=twin)
    probe.boundary("train end")


def test_a_second_group_with_the_same_name_and_ranks_has_a_suffix(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _twins) == [0, 0]
    assert ranks.streams(tmp_path, 0, "trainer.twin") == [[("all_reduce", "Float", 1)]]
    assert ranks.streams(tmp_path, 0, "trainer.twin#2") == [[("all_reduce", "Float", 1)] * 2]


def _again(probe: Probe, rank: int) -> None:
    dist.all_reduce(torch.ones(1))
    probe.boundary("step")
    __import__("time").sleep(1.2)  # a pulse, so that the group has been read before it goes
    dist.destroy_process_group()
    store = dist.FileStore(str(_again.out), 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for _ in range(2):
        dist.all_reduce(torch.ones(1))
    probe.boundary("train end")


def test_a_group_made_anew_under_the_same_name_is_another_group(tmp_path: Path) -> None:
    _again.out = tmp_path / "store2"  # type: ignore[attr-defined]
    assert ranks.run(tmp_path, _again) == [0, 0], [p.read_text() for p in tmp_path.glob("failed-*")]
    one = ("all_reduce", "Float", 1)
    assert ranks.streams(tmp_path, 0) == [[one], []]
    assert ranks.streams(tmp_path, 0, "trainer.world#2") == [[], [one, one]]


def _many(probe: Probe, rank: int) -> None:
    works = []
    for i in range(3000):
        works.append(dist.all_reduce(torch.ones(1 + i % 7), async_op=True))
        if i % 5 == 0:
            works.pop().wait()
        if i % 50 == 0:
            probe.boundary("step", i)
    for work in works:
        work.wait()
    probe.boundary("train end")


def test_thousands_of_collectives_and_boundaries_in_a_hurry(tmp_path: Path) -> None:
    """Reading the records is put off and done in bulk; each boundary still has its own stream."""
    assert ranks.run(tmp_path, _many, ring=2000) == [0, 0]
    found = [ranks.streams(tmp_path, rank) for rank in (0, 1)]
    assert found[0] == found[1]
    assert [len(s) for s in found[0]] == [1] + [50] * 59 + [49]
    assert [op[2] for s in found[0] for op in s] == [1 + i % 7 for i in range(3000)]
    assert Counter(line["k"] for line in ranks.lines(tmp_path, 0))["lost"] == 0
    assert ranks.verdict(tmp_path).kind is Kind.IN_STEP
