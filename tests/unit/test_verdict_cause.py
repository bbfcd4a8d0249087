"""Jobs that broke off: what their last words prove, who went first, and the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.record import read_directory
from lockstep.stacks.judging import judge
from lockstep.verdict import Kind, Verdict

OPS = [
    {"k": "op", "id": 0, "op": "all_gather", "dtype": "BFloat16", "n": None},
    {"k": "op", "id": 1, "op": "all_reduce", "dtype": "Float", "n": 2},
    {"k": "op", "id": 2, "op": "all_reduce", "dtype": "Float", "n": 3},
]
IDLE = ["vllm/v1/engine/core.py:739 _process_input_queue"]
WAITS = ["vllm/forward_context.py:113 num_tokens_across_dp"]


def digest(runs: list[list[int]]) -> str:
    return f"{sum((op + 1) * 31**i * n for i, (op, n) in enumerate(runs)) % 2**64:016x}"


class File:
    """One process's ledger, line by line."""

    def __init__(self, side: str, role: str, rank: int) -> None:
        self.name = f"{side}-{role.replace(' ', '_')}-{rank}-{100 + rank}.jsonl"
        self.lines: list[dict[str, Any]] = [
            {"k": "process", "v": 1, "t": 0.0, "side": side, "role": role, "rank": rank, "pid": 100 + rank}
        ]
        self._runs: list[list[int]] = []
        self.count = 0

    def group(self, name: str, rank: int, of: int = 2) -> File:
        self.lines.append(
            {"k": "group", "t": 0.0, "g": 0, "name": name, "ranks": list(range(of)), "rank": rank}
        )
        self.lines += OPS
        return self

    def add(self, k: str, t: float, **rest: Any) -> File:
        self.lines.append({"k": k, "t": t, **rest})
        return self

    def stream(self, *runs: list[int]) -> dict[str, Any]:
        """The `c` and `s` of a line by which these were issued."""
        self._runs += runs
        self.count += sum(n for _, n in runs)
        return {"c": {"0": [self.count, digest(self._runs), {}]}, "s": {"0": list(runs)}} if runs else {}

    def passes(self, t: float, name: str, n: int, *runs: list[int]) -> File:
        return self.add("boundary", t, b=name, n=n, **self.stream(*runs))

    def ends(self, t: float, *runs: list[int], by: str | None = None) -> File:
        self.pulse(t, self.count + sum(n for _, n in runs))
        return self.add("end", t, **({"by": by} if by else {}), **self.stream(*runs))

    def pulse(self, t: float, issued: int, completed: int | None = None, **rest: Any) -> File:
        c = {"0": [issued, issued if completed is None else completed]}
        return self.add("pulse", t, **{"c": c, "beat": 0, "cpu": 0.0, "park": "futex", "at": [], **rest})


def verdict(tmp_path: Path, *files: File, **options: Any) -> Verdict:
    (tmp_path / "ledgers").mkdir()
    for file in files:
        (tmp_path / "ledgers" / file.name).write_text("".join(json.dumps(line) + "\n" for line in file.lines))
    return judge(read_directory(tmp_path), **options)


def trainers() -> tuple[File, File]:
    ranks = [File("trainer", "rank", rank).group("trainer.world", rank) for rank in (0, 1)]
    for rank in ranks:
        rank.passes(1.0, "train begin", 1, [0, 3]).passes(9.0, "step", 1, [0, 4])
    return ranks[0], ranks[1]


def server(until: float) -> File:
    file = File("rollout", "server", 0)
    for t in range(int(until) + 1):
        file.add("pulse", float(t), c={}, beat=0, cpu=0.0, park="epoll", at=[])
    return file


# -- what was issued after the last boundary


def test_last_words_prove_who_issued_what(tmp_path: Path) -> None:
    a, b = trainers()
    a.ends(9.2, [1, 1], by="SIGABRT")
    b.ends(9.4, [2, 1], [0, 1], by="SIGTERM")
    found = verdict(tmp_path, a, b)
    assert found.kind is Kind.DIVERGED
    assert (found.seq, str(found.agreed)) == (8, "step 1")
    assert [view.operation for view in found.ranks] == [
        "all_reduce #8 of 2 float32",
        "all_reduce #8 of 3 float32",
    ]
    assert found.cause == "rank-dependent-control-flow"


def test_equal_last_words_prove_nothing(tmp_path: Path) -> None:
    """The one that was ended first has issued less: no difference."""
    a, b = trainers()
    a.ends(9.2, [1, 1], by="SIGABRT")
    b.ends(9.4, [1, 1], [0, 1], by="SIGTERM")
    found = verdict(tmp_path, a, b)
    assert found.kind is Kind.INCOMPLETE
    assert found.lost == "trainer rank 0"
    assert found.cause == "rank-died"


# -- who went first


def test_the_killed_rank_is_named_and_not_the_one_that_was_told_to_end(tmp_path: Path) -> None:
    a, b = trainers()
    b.pulse(9.5, 7)
    a.ends(10.0, [0, 1], by="SIGTERM")
    found = verdict(tmp_path, a, b, server(18))
    assert found.kind is Kind.INCOMPLETE
    assert found.lost == "trainer rank 1"
    assert "trainer rank 1 broke off without an end" in found.sentence


@pytest.mark.parametrize(("until", "lost"), [(12, ""), (14, "trainer rank 1")])
def test_a_rank_without_an_end_is_gone_two_pulses_after_its_peers_were_ended(
    tmp_path: Path, until: float, lost: str
) -> None:
    a, b = trainers()
    b.pulse(9.9, 7)
    a.ends(10.0, [0, 1], by="SIGTERM")
    assert verdict(tmp_path, a, b, server(until)).lost == lost


def test_the_rank_that_raised_is_named(tmp_path: Path) -> None:
    a, b = trainers()
    b.ends(9.5, [0, 1])
    a.ends(10.0, [0, 1], by="SIGTERM")
    assert verdict(tmp_path, a, b, server(18)).lost == "trainer rank 1"


def test_an_engine_that_was_gone_before_the_trainer_is_named(tmp_path: Path) -> None:
    a, b = trainers()
    core = File("rollout", "engine core", 0).add("pulse", 8.0, c={}, beat=0, cpu=0.0, park="futex", at=[])
    a.ends(10.0, [0, 1])
    b.ends(10.4, [0, 1], by="SIGTERM")
    found = verdict(tmp_path, a, b, core, server(18))
    assert found.lost == "rollout engine core 0"
    assert found.cause == "rank-died"


def test_a_job_that_was_only_told_to_end_has_lost_nobody(tmp_path: Path) -> None:
    a, b = trainers()
    a.ends(10.0, [0, 1], by="SIGTERM")
    b.ends(10.0, [0, 1], by="SIGTERM")
    found = verdict(tmp_path, a, b, server(12))
    assert (found.kind, found.lost, found.cause) == (Kind.INCOMPLETE, "", "unknown")


def test_dead_trainers_are_not_stalled(tmp_path: Path) -> None:
    a, b = trainers()
    assert verdict(tmp_path, a, b, server(40)).kind is Kind.INCOMPLETE


def test_living_trainers_that_do_not_move_are(tmp_path: Path) -> None:
    a, b = trainers()
    for t in range(10, 40, 2):
        a.pulse(float(t), 7)
        b.pulse(float(t), 7)
    assert verdict(tmp_path, a, b, server(40)).kind is Kind.STALLED


def test_an_engine_that_broke_off_after_a_generation_failed_was_gone_before_the_trainer(
    tmp_path: Path,
) -> None:
    a, b = trainers()
    core = File("rollout", "engine core", 0).add("pulse", 9.5, c={}, beat=0, cpu=0.0, park="futex", at=[])
    worker = File("rollout", "worker", 0).passes(5.0, "generate begin", 1).passes(9.8, "generate failed", 1)
    a.ends(10.0, [0, 1])
    b.ends(10.4, [0, 1], by="SIGTERM")
    assert verdict(tmp_path, a, b, core, worker, server(18)).lost == "rollout engine core 0"


def test_an_engine_that_may_have_lost_the_trainer_is_not_blamed(tmp_path: Path) -> None:
    a, b = trainers()
    core = File("rollout", "engine core", 0).add("pulse", 9.5, c={}, beat=0, cpu=0.0, park="futex", at=[])
    a.ends(10.0, [0, 1])
    b.ends(10.4, [0, 1], by="SIGTERM")
    assert verdict(tmp_path, a, b, core, server(18)).lost == "trainer rank 0"


# -- ranks that pass different boundaries


def test_ranks_that_went_different_ways_with_the_same_collectives(tmp_path: Path) -> None:
    a, b = trainers()
    a.passes(10.0, "eval begin", 1).passes(11.0, "eval end", 1, [0, 2]).ends(12.0, [0, 1])
    b.passes(10.0, "eval begin", 1).passes(11.0, "generate begin", 1, [0, 3]).ends(12.4, by="SIGTERM")
    found = verdict(tmp_path, a, b)
    assert found.kind is Kind.DIVERGED
    assert "after eval begin 1: rank 0 passed eval end 1; rank 1 passed generate begin 1" in found.sentence
    assert str(found.agreed) == "eval begin 1"
    assert found.cause == "rank-dependent-control-flow"
    assert found.evidence[1] == "trainer rank 1 passed generate begin 1"


def test_a_rank_that_passed_less_went_no_other_way(tmp_path: Path) -> None:
    a, b = trainers()
    a.passes(10.0, "eval begin", 1).ends(12.0)
    b.ends(12.4, by="SIGTERM")
    assert verdict(tmp_path, a, b).kind is Kind.INCOMPLETE


# -- causes of a hang of the rollout


def engines(late: int, *of_idle: str, still_adds: bool = False) -> list[File]:
    """Engine `late` waits in the group; the other one is idle, whose worker has passed `of_idle` last."""
    idle = 1 - late
    cores = [File("rollout", "engine core", rank).group("rollout.dp", rank) for rank in (0, 1)]
    workers = [File("rollout", "worker", rank) for rank in (0, 1)]
    for worker in workers:
        for n, t in ((1, 2.0), (2, 5.0)):
            worker.passes(t, "generate begin", n)
            if n == 1:
                worker.passes(t + 0.5, "requests added", n).passes(t + 1.0, "generate end", n)
    if not still_adds:
        workers[late].passes(6.0, "requests added", 2)
    for name in of_idle:
        workers[idle].passes(6.0, name, 1 if name == "generate failed" else 2)
    for t in range(8, 30, 2):
        wait = {"g": 0, "seq": 4, "op": "all_reduce", "dtype": "Int", "n": 2}
        cores[late].pulse(float(t), 4, 3, at=WAITS, w=wait)
        cores[idle].pulse(float(t), 3, at=IDLE)
        for worker in workers:
            worker.add("pulse", float(t), c={}, beat=0, cpu=0.0, park="futex", at=["x.py:1 wait"])
    return [*cores, *workers]


@pytest.mark.parametrize("late", [0, 1])
def test_whose_worker_has_answered_has_left_the_wave(tmp_path: Path, late: int) -> None:
    found = verdict(tmp_path, *engines(late, "requests added", "generate end"))
    assert found.kind is Kind.STUCK
    assert found.absent == (1 - late,)
    assert found.cause == "offline-wave-race"


def test_whose_worker_failed_got_no_work(tmp_path: Path) -> None:
    found = verdict(tmp_path, *engines(1, "generate failed"))
    assert (found.kind, found.absent) == (Kind.STUCK, (0,))
    assert found.cause == "request-failed"
    assert "rollout worker 0 failed in generation 2" in found.evidence[0]


def test_a_worker_that_still_prepares_its_requests_is_slow(tmp_path: Path) -> None:
    """Its threads load images for 20 s, say; the other worker's engine waits for its engine meanwhile."""
    assert verdict(tmp_path, *engines(1)).kind is not Kind.STUCK


def test_a_worker_that_still_adds_holds_the_verdict_back_for_a_while_only(tmp_path: Path) -> None:
    files = engines(1, "requests added", "generate end", still_adds=True)
    assert verdict(tmp_path, *files).kind is not Kind.STUCK
    (tmp_path / "later").mkdir()
    assert verdict(tmp_path / "later", *files, patience_s=15.0).kind is Kind.STUCK


# -- causes of a hang of the trainer and of the weight sync


def stuck(group: str, at: list[str], other: list[str], **rest: Any) -> list[File]:
    a, b = (File("trainer", "rank", rank).group(group, rank) for rank in (0, 1))
    for t in range(2, 30, 2):
        a.pulse(
            float(t), 4, 3, at=at, w={"g": 0, "seq": 4, "op": "all_gather", "dtype": "BFloat16", "n": None}
        )
        b.pulse(float(t), 3, at=other, **rest)
    return [a, b]


VISION = ["deepspeed/x.py:337 fetch", "transformers/models/qwen3_vl/modeling_qwen3_vl.py:75 forward"]
TEXT = ["deepspeed/x.py:337 fetch", "transformers/models/qwen3_vl/modeling_qwen3_vl.py:500 forward"]


def test_ranks_in_different_layers_are_a_mixed_batch(tmp_path: Path) -> None:
    found = verdict(tmp_path, *stuck("trainer.world", VISION, TEXT))
    assert found.cause == "mixed-batch"
    assert "modeling_qwen3_vl.py:75" in found.evidence[1]


@pytest.mark.parametrize("other", [VISION, ["x.py:1 step"]])
def test_ranks_in_one_layer_or_outside_of_the_model_are_not(tmp_path: Path, other: list[str]) -> None:
    found = verdict(tmp_path, *stuck("trainer.world", VISION, other))
    assert found.cause == "rank-dependent-control-flow"


def test_ranks_that_parted_long_ago_may_be_in_any_layer(tmp_path: Path) -> None:
    a, b = trainers()
    a.pulse(9.1, 10, 9, at=VISION).add("end", 9.2, by="SIGABRT", **a.stream([1, 1], [0, 2]))
    b.pulse(9.1, 10, 9, at=TEXT).add("end", 9.4, by="SIGTERM", **b.stream([2, 1], [0, 2]))
    found = verdict(tmp_path, a, b)
    assert (found.seq, found.cause) == (8, "rank-dependent-control-flow")


KINDS = ["lock", "queue", "pipe", "socket", "process", "future"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_waits_for_something_that_is_no_rank_is_blocked_elsewhere(
    tmp_path: Path, kind: str
) -> None:
    found = verdict(tmp_path, *stuck("trainer.world", [], ["data.py:3 load", "x.py:1 step"], blocked=kind))
    assert (found.kind, found.cause) == (Kind.STUCK, "blocked-elsewhere")
    assert found.evidence == (f"trainer rank 1 waits for a {kind} in load (data.py:3)",)
    assert f"rank 1 issued 3 and waits for a {kind} in load (data.py:3)" in found.sentence


def test_who_is_not_known_to_be_blocked_is_not(tmp_path: Path) -> None:
    """As in ledgers of older releases, that did not look."""
    found = verdict(tmp_path, *stuck("trainer.world", [], ["data.py:3 load"]))
    assert found.cause == "rank-dependent-control-flow"


def blocked_after(*of_b: tuple[str, int, list[list[int]]], issued: int = 7) -> list[File]:
    """Rank 0 waits in #8; rank 1 has passed `of_b` since both passed step 1 and is blocked in a queue."""
    a, b = trainers()
    for i, (name, n, runs) in enumerate(of_b):
        b.passes(9.1 + i / 10, name, n, *runs)
    for t in range(10, 30, 2):
        wait = {"g": 0, "seq": 8, "op": "all_reduce", "dtype": "Float", "n": 2}
        a.pulse(float(t), 8, 7, at=["x.py:7 step"], w=wait)
        b.pulse(float(t), issued, at=["data.py:3 load"], blocked="queue")
    return [a, b]


def test_a_rank_that_passed_a_boundary_without_its_peers_went_another_way(tmp_path: Path) -> None:
    assert verdict(tmp_path, *blocked_after()).cause == "blocked-elsewhere"
    (tmp_path / "later").mkdir()
    found = verdict(tmp_path / "later", *blocked_after(("step", 2, [])))
    assert (found.kind, found.cause) == (Kind.STUCK, "rank-dependent-control-flow")


def test_ranks_whose_counts_differ_at_a_boundary_went_different_ways(tmp_path: Path) -> None:
    a, b = blocked_after(("step", 2, []))
    at = next(i for i, line in enumerate(a.lines) if line["k"] == "pulse")
    boundary = {"k": "boundary", "t": 9.2, "b": "step", "n": 2, **a.stream([1, 1])}
    a.lines[at:] = [boundary, *({**line, "c": {"0": [9, 8]}} for line in a.lines[at:])]
    for line in a.lines[at + 1 :]:
        line["w"] = {**line["w"], "seq": 9}
    found = verdict(tmp_path, a, b)
    assert (found.kind, found.cause) == (Kind.STUCK, "rank-dependent-control-flow")


def test_a_rank_that_waits_in_another_collective_is_not_blocked_elsewhere(tmp_path: Path) -> None:
    a, b = stuck("trainer.world", [], ["x.py:1 step"])
    for line in b.lines:
        if line["k"] == "pulse":
            line["c"] = {"0": [4, 3]}
            line["w"] = {"g": 0, "seq": 4, "op": "all_reduce", "dtype": "Float", "n": 2}
    assert verdict(tmp_path, a, b).cause == "rank-dependent-control-flow"


def test_a_hang_of_the_weight_sync_is_its_interruption(tmp_path: Path) -> None:
    assert verdict(tmp_path, *stuck("weight-sync", [], IDLE)).cause == "weight-sync-interrupted"


def test_a_silent_absent_rank_is_dead(tmp_path: Path) -> None:
    a, b = stuck("trainer.world", [], [])
    del b.lines[-9:]
    found = verdict(tmp_path, a, b, patience_s=20.0)
    assert (found.kind, found.cause) == (Kind.STUCK, "rank-died")


def test_a_job_in_step_has_no_cause(tmp_path: Path) -> None:
    a, b = trainers()
    for rank in (a, b):
        rank.passes(12.0, "train end", 1, [0, 1]).ends(12.1)
    found = verdict(tmp_path, a, b)
    assert (found.kind, found.cause, found.evidence) == (Kind.IN_STEP, "", ())
