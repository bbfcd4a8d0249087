"""From real gloo ranks through the ledger to the verdict: who left the order, what a waiting rank tells."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402

from lockstep.inside.recorder import Probe  # noqa: E402
from lockstep.verdict import Kind  # noqa: E402

HANG_S = 12.0
"""How long ranks that hang are left to: a few pulses, then the settling time of 3 s, on a busy machine."""


def _line(text: str) -> int:
    source = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {text}"))


def _step(t: torch.Tensor, times: int) -> None:
    for _ in range(times):
        dist.all_reduce(t)  # in step


def _skipped(probe: Probe, rank: int) -> None:
    t = torch.ones(4)
    probe.boundary("train begin")
    _step(t, 3)
    probe.boundary("step")
    if rank == 0:
        dist.broadcast(t, 0)
        dist.all_reduce(torch.ones(6, dtype=torch.int32))  # one too many
    else:
        dist.broadcast(t, 0)
        time.sleep(600)


def test_a_skipped_collective_is_stuck_and_names_the_waiting_rank_and_its_line(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _skipped, seconds=HANG_S) == [-9, -9]
    # `sleep` ends by itself: the verdict takes it for slow until a minute has passed.
    stalled = ranks.verdict(tmp_path)
    assert stalled.kind is Kind.STALLED
    assert (stalled.group and stalled.group.name, stalled.waiting, stalled.absent) == (
        "trainer.world",
        (0,),
        (1,),
    )
    pulse = ranks.lines(tmp_path, 0, "pulse")[-1]
    here = f"{Path(__file__)}:{_line('one too many')}"
    assert pulse["w"] == {"g": 0, "seq": 5, "op": "all_reduce", "dtype": "Int", "n": 6, "at": here}
    assert pulse["at"][0] == f"{here} _skipped"
    assert pulse["park"] == "futex"
    assert pulse["c"] == {"0": [5, 4]}
    absent = ranks.lines(tmp_path, 1, "pulse")[-1]
    assert "w" not in absent
    assert absent["park"] == "sleep"
    assert absent["c"] == {"0": [4, 4]}


def _doubled(probe: Probe, rank: int) -> None:
    t = torch.ones(4)
    _step(t, 2)
    probe.boundary("step")
    _step(t, 5 if rank == 1 else 4)
    probe.boundary("step")
    import queue

    queue.Queue[int]().get()


def test_a_doubled_collective_is_stuck_with_the_rank_that_is_ahead_waiting(tmp_path: Path) -> None:
    ranks.run(tmp_path, _doubled, seconds=HANG_S)
    verdict = ranks.verdict(tmp_path)
    assert verdict.kind is Kind.STUCK
    assert (verdict.seq, verdict.waiting, verdict.absent) == (7, (1,), (0,))
    (waiting,) = [view for view in verdict.ranks if view.state == "waiting"]
    assert waiting.issued_at == f"{Path(__file__)}:{_line('in step')}"
    assert ranks.lines(tmp_path, 0, "pulse")[-1]["park"] == "futex"


def _resized_and_hung(probe: Probe, rank: int) -> None:
    _step(torch.ones(1), 3)
    probe.boundary("step")
    dist.broadcast(torch.ones(8 if rank == 1 else 4), 0)  # gloo takes it: the receiver has room
    if rank == 1:
        import queue

        queue.Queue[int]().get()
    _step(torch.ones(1), 1)


def test_a_hang_after_a_difference_names_the_difference_though_no_boundary_shows_it(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _resized_and_hung, seconds=HANG_S) == [-9, -9]
    verdict = ranks.verdict(tmp_path)
    assert verdict.kind is Kind.STUCK
    assert (verdict.seq, verdict.waiting, verdict.absent) == (4, (0,), ())
    assert "rank 0 issued broadcast #4 of 4 float32; rank 1 issued broadcast #4 of 8" in verdict.sentence
    assert "; now rank 0 waits in all_reduce #5 of 1 float32" in verdict.sentence
    assert sum("s" in line for line in ranks.lines(tmp_path, 0, "pulse")) == 1


def _reordered(probe: Probe, rank: int) -> None:
    first, second = torch.ones(4), torch.ones(4, dtype=torch.int32)
    _step(torch.ones(1), 3)
    probe.boundary("step")
    for t in (first, second) if rank == 0 else (second, first):
        dist.all_reduce(t)  # of equal size in bytes: gloo does not notice
    probe.boundary("step")
    probe.boundary("train end")


def test_reordered_collectives_diverge_at_the_first_that_differs(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _reordered) == [0, 0]
    verdict = ranks.verdict(tmp_path)
    assert verdict.kind is Kind.DIVERGED
    assert verdict.seq == 4
    assert str(verdict.boundary) == "step 2"
    assert str(verdict.agreed) == "step 1"
    assert [view.operation for view in verdict.ranks] == [
        "all_reduce #4 of 4 float32",
        "all_reduce #4 of 4 int32",
    ]


def _resized(probe: Probe, rank: int) -> None:
    _step(torch.ones(1), 3)
    probe.boundary("step")
    dist.broadcast(torch.ones(8 if rank == 1 else 4), 0)  # gloo takes it: the receiver has room
    probe.boundary("step")
    probe.boundary("train end")


def test_a_resized_collective_diverges_though_counts_agree(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _resized) == [0, 0]
    verdict = ranks.verdict(tmp_path)
    assert verdict.kind is Kind.DIVERGED
    assert verdict.seq == 4
    assert [m["c"]["0"][0] for m in ranks.lines(tmp_path, 0, "boundary")[:2]] == [3, 4]


def _received(probe: Probe, rank: int) -> None:
    """Rank 0 has an all-reduce under way and blocks in a receive, whose line is not the all-reduce's."""
    t = torch.ones(4)
    _step(t, 2)
    probe.boundary("step")
    if rank == 0:
        dist.all_reduce(t, async_op=True)
        dist.recv(torch.ones(2), 1)  # nobody sends
    import queue

    queue.Queue[int]().get()


def test_a_blocked_receive_is_not_taken_for_the_line_of_a_collective(tmp_path: Path) -> None:
    ranks.run(tmp_path, _received, seconds=HANG_S)
    pulse = ranks.lines(tmp_path, 0, "pulse")[-1]
    assert pulse["w"] == {"g": 0, "seq": 3, "op": "all_reduce", "dtype": "Float", "n": 4}
    assert pulse["at"][0] == f"{Path(__file__)}:{_line('nobody sends')} _received"
    verdict = ranks.verdict(tmp_path)
    assert (verdict.kind, verdict.waiting, verdict.absent) == (Kind.STUCK, (0,), (1,))


def _out_of_order(probe: Probe, rank: int) -> None:
    """Gloo's two threads may end collectives out of order; afterwards nobody waits."""
    for _ in range(200):
        works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (200_000, 1, 100_000, 1)]
        for work in works:
            work.wait()
    probe.boundary("step")
    time.sleep(4)


def test_collectives_that_ended_out_of_order_are_not_waited_for(tmp_path: Path) -> None:
    ranks.run(tmp_path, _out_of_order, seconds=60)
    for rank in (0, 1):
        idle = [p for p in ranks.lines(tmp_path, rank, "pulse") if p["park"] == "sleep"]
        assert idle
        assert all("w" not in pulse for pulse in idle)


def _two_groups(probe: Probe, rank: int) -> None:
    second = dist.new_group([0, 1], group_desc="second")
    _step(torch.ones(1), 2)
    dist.all_reduce(torch.ones(1), group=second)
    if rank == 0:
        early = dist.all_reduce(torch.ones(3), group=second, async_op=True)
        time.sleep(0.1)
        late = dist.all_reduce(torch.ones(5), async_op=True)
        late.wait()
        early.wait()
    import queue

    queue.Queue[int]().get()


def test_of_two_the_one_that_has_waited_longest_is_told(tmp_path: Path) -> None:
    ranks.run(tmp_path, _two_groups, seconds=HANG_S)
    pulse = ranks.lines(tmp_path, 0, "pulse")[-1]
    names = {g["g"]: g["name"] for g in ranks.lines(tmp_path, 0, "group")}
    assert names[pulse["w"]["g"]] == "trainer.second"
    assert (pulse["w"]["seq"], pulse["w"]["n"]) == (2, 3)
    assert pulse["at"][0].startswith(f"{Path(__file__)}:")
