"""Two groups of the same ranks on real gloo ranks: the ledgers say which one each rank means."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402

from lockstep.inside.recorder import Probe  # noqa: E402
from lockstep.verdict import Kind  # noqa: E402

HANG_S = 12.0


def _twins(local: bool) -> list[dist.ProcessGroup]:
    return [dist.new_group([0, 1], group_desc="twin", use_local_synchronization=local) for _ in range(2)]


def _crossed(probe: Probe, rank: int) -> None:
    twins = _twins(_crossed.local)  # type: ignore[attr-defined]
    probe.boundary("train begin")
    for twin in twins if rank == 0 else reversed(twins):
        dist.all_reduce(torch.ones(1), group=twin)


@pytest.mark.parametrize("local", [False, True])
def test_two_groups_used_in_opposite_order_are_stuck_and_both_are_named(tmp_path: Path, local: bool) -> None:
    _crossed.local = local  # type: ignore[attr-defined]
    ranks.run(tmp_path, _crossed, seconds=HANG_S)
    found = ranks.verdict(tmp_path)
    assert found.kind is Kind.STUCK, found.sentence
    assert found.group is not None
    names = {found.group.name, *(text.partition(":")[0] for text in found.consequences)}
    assert names == {"trainer.twin", "trainer.twin#2"}
    first = [line["id"] for rank in (0, 1) for line in ranks.lines(tmp_path, rank, "group")]
    assert len(set(first)) == len(first) // 2


def _any_order(probe: Probe, rank: int) -> None:
    """Each rank uses another one of the groups first, which is then the first that it declares."""
    few, many = _twins(False)
    probe.boundary("train begin")
    works = []
    for twin, times in ((few, 1), (many, 3)) if rank == 0 else ((many, 3), (few, 1)):
        works += [dist.all_reduce(torch.ones(times), group=twin, async_op=True) for _ in range(times)]
    for work in works:
        work.wait()
    probe.boundary("step")
    probe.boundary("train end")


def test_groups_used_in_another_order_without_waiting_are_in_step(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _any_order) == [0, 0], [p.read_text() for p in tmp_path.glob("failed-*")]
    found = ranks.verdict(tmp_path)
    assert found.kind is Kind.IN_STEP, found.sentence
    assert "trainer.twin 1, trainer.twin#2 3" in found.sentence
