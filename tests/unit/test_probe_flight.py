"""The recorders' dumps, gloo's and NCCL's, as torch 2.8.0 lays them out (`FlightRecorderDetail.hpp`:
`getCollectiveTrace`, `getPgConfig`, `getPgStatus`). NCCL's are made by hand: nothing here needs a GPU or
torch.
"""

from __future__ import annotations

import gc
import json
import pickle
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lockstep.inside.counters import Counts, GroupTable
from lockstep.inside.flight_recorder import Entry, FlightRecorder
from lockstep.inside.group_names import GroupNames
from lockstep.inside.recorder import Probe
from lockstep.stacks.swift.inside.recorded import purpose

DP = ("15", "undefined")
DEFAULT = ("0", "default_pg")


def entry(
    record: int,
    op: str = "nccl:all_reduce",
    seq: int = 1,
    pg: int = 5,
    names: tuple[str, str] = DP,
    *,
    sizes: list[list[int]] | None = None,
    out: list[list[int]] | None = None,
    dtype: str = "Int",
    state: str = "completed",
    p2p: int = 0,
) -> dict[str, Any]:
    """One record; `p2p` is its number among point-to-point operations, 0 for a collective."""
    shapes = [[2]] if sizes is None else sizes
    started = None if state == "scheduled" else 1_000 + record
    return {
        "record_id": record,
        "pg_id": pg,
        "process_group": names,
        "thread_name": "pt_main_thread",
        "thread_id": "4711",
        "collective_seq_id": seq,
        "p2p_seq_id": p2p,
        "op_id": record + 1,
        "profiling_name": op,
        "time_created_ns": 900 + record,
        "input_sizes": shapes,
        "input_dtypes": [dtype] * len(shapes),
        "output_sizes": shapes if out is None else out,
        "output_dtypes": [dtype] * len(shapes if out is None else out),
        "state": state,
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": 2_000 + record if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": p2p > 0,
    }


def status(enqueued: int, completed: int, started: int | None = None) -> dict[str, int]:
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": completed if started is None else started,
        "last_completed_collective": completed,
    }


class Recorder:
    """One of torch's two recorders, with a ring of `size` records."""

    def __init__(self, nccl: bool, size: int = 2000) -> None:
        self.nccl, self.size = nccl, size
        self.entries: list[dict[str, Any]] = []
        self.status: dict[str, dict[str, int]] = {}

    def dump(self, collectives: bool, stacks: bool, only_active: bool) -> bytes:
        # pg_config is filled by NCCL alone; getPgStatus writes -1 for a group that has not issued anything.
        config = {"15": {"name": "15", "desc": "undefined", "ranks": "[0, 1]"}} if self.nccl else {}
        data: dict[str, Any] = {
            "version": "2.9",
            "pg_config": config,
            "nccl_version": "2.27.3",
            "pg_status": self.status,
        }
        if collectives:
            kept = self.entries[-self.size :]
            if only_active:
                kept = [e for e in kept if e["time_discovered_completed_ns"] is None]
            frames = [{"name": "num_tokens_across_dp", "filename": "vllm/forward_context.py", "line": 82}]
            data["entries"] = [{"frames": frames, **e} if stacks else e for e in kept]
        return pickle.dumps(data, protocol=2)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, Recorder]:
    """gloo's and NCCL's, in the place of torch's."""
    gloo, nccl = Recorder(nccl=False), Recorder(nccl=True)
    c10d = ModuleType("torch._C._distributed_c10d")
    c10d._dump_fr_trace = gloo.dump  # type: ignore[attr-defined]
    c10d._dump_nccl_trace = nccl.dump  # type: ignore[attr-defined]
    c = ModuleType("torch._C")
    c._distributed_c10d = c10d  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.version = SimpleNamespace(cuda=None)  # type: ignore[attr-defined]
    for name, module in (
        ("torch", torch),
        ("torch._C", c),
        ("torch._C._distributed_c10d", c10d),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return gloo, nccl


def test_nccl_records_count_by_collective_and_gloo_by_operation(recorders: tuple[Recorder, Recorder]) -> None:
    gloo, nccl = recorders
    nccl.entries = [
        entry(0, seq=207, sizes=[[2]]),
        entry(1, "nccl:_all_gather_base", 208, sizes=[[4, 8]], out=[[8, 8]], dtype="BFloat16"),
    ]
    # The third collective of its group, after a send.
    gloo.entries = [entry(3, "gloo:all_reduce", 3, pg=16, names=("16", "undefined"), sizes=[[1]])]
    entries, lost = FlightRecorder().drain()
    assert lost == 3
    assert entries == [
        Entry((0, 16), ("16", "undefined"), 4, 3, "all_reduce", "Int", 1, 903e-9),
        Entry((1, 5), DP, 207, 207, "all_reduce", "Int", 2, 900e-9),
        Entry((1, 5), DP, 208, 208, "_all_gather_base", "BFloat16", 32, 901e-9),
    ]


def test_states_do_not_matter_for_what_was_issued(recorders: tuple[Recorder, Recorder]) -> None:
    _, nccl = recorders
    states = ("completed", "started", "scheduled")
    nccl.entries = [entry(i, seq=i + 1, state=state) for i, state in enumerate(states)]
    recorder = FlightRecorder()
    assert [e.key for e in recorder.drain()[0]] == [1, 2, 3]
    nccl.entries[1:] = [entry(1, seq=2), entry(2, seq=3)]
    assert recorder.drain() == ([], 0)


def test_point_to_point_is_left_out_and_is_not_lost(recorders: tuple[Recorder, Recorder]) -> None:
    _, nccl = recorders
    nccl.entries = [
        entry(0, seq=1),
        entry(1, "nccl:send 0->1", 1, p2p=1),
        entry(2, "nccl:recv 1<-0", 1, p2p=2),
        entry(3, seq=2),
    ]
    entries, lost = FlightRecorder().drain()
    assert ([e.seq for e in entries], lost) == ([1, 2], 0)


def test_sizes_that_may_differ_between_ranks_are_not_compared(recorders: tuple[Recorder, Recorder]) -> None:
    _, nccl = recorders
    nccl.entries = [
        entry(0, "nccl:all_to_all", 1, sizes=[[5]], out=[[6]]),
        entry(1, "nccl:all_reduce_barrier", 2, sizes=[[1]]),
    ]
    assert [e.n for e in FlightRecorder().drain()[0]] == [None, 1]


def test_overwritten_records_are_told(recorders: tuple[Recorder, Recorder]) -> None:
    _, nccl = recorders
    nccl.size = 3
    recorder = FlightRecorder()
    nccl.entries = [entry(i, seq=i + 1) for i in range(2)]
    assert len(recorder.drain()[0]) == 2
    nccl.entries = [entry(i, seq=i + 1) for i in range(9)]
    entries, lost = recorder.drain()
    assert ([e.key for e in entries], lost) == ([7, 8, 9], 4)


def test_status_of_a_hang_and_of_a_group_that_has_issued_nothing(
    recorders: tuple[Recorder, Recorder],
) -> None:
    _, nccl = recorders
    nccl.status = {"0": status(-1, -1), "5": status(434159, 434158, 434159), "7": status(1, -1)}
    found = FlightRecorder().status()
    assert found.enqueued == {(1, 5): 434159, (1, 7): 1}
    assert found.completed == {(1, 5): 434158, (1, 7): 0}


def test_without_nccl_in_the_build_there_is_one_recorder(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    del sys.modules["torch._C._distributed_c10d"]._dump_nccl_trace  # type: ignore[attr-defined]
    recorders[1].entries = [entry(0)]
    assert FlightRecorder().drain() == ([], 0)


def test_stacks_for_a_person(recorders: tuple[Recorder, Recorder]) -> None:
    _, nccl = recorders
    nccl.entries = [entry(0, state="scheduled")]
    told = FlightRecorder().last_with_stacks()
    assert told[0]["frames"][0]["name"] == "num_tokens_across_dp"
    assert told[0]["state"] == "scheduled"


def registry(monkeypatch: pytest.MonkeyPatch, backend: str = "nccl") -> Any:
    """torch's registry with the default group and vLLM's DP group, on two ranks; this process is rank 1."""
    default, dp = (
        SimpleNamespace(rank=lambda: 1, group_desc="default_pg", _get_sequence_number_for_group=lambda: 0),
        SimpleNamespace(rank=lambda: 1, group_desc="undefined", _get_sequence_number_for_group=lambda: 0),
    )
    pairs = {"0": default, "15": dp}
    groups = {id(pg): pg for pg in pairs.values()}

    class ById(dict[Any, Any]):
        def __getitem__(self, pg: Any) -> Any:
            return super().__getitem__(id(pg))

        def items(self) -> Any:
            return [(groups[key], value) for key, value in super().items()]

    world = SimpleNamespace(
        pg_names=ById({id(pg): name for name, pg in pairs.items()}),
        pg_group_ranks=ById({id(pg): {0: 0, 1: 1} for pg in pairs.values()}),
        pg_map=ById({id(pg): (backend, None) for pg in pairs.values()}),
        default_pg=default,
    )
    module = ModuleType("torch.distributed.distributed_c10d")
    module._world = world  # type: ignore[attr-defined]
    state = ModuleType("vllm.distributed.parallel_state")
    coordinator = SimpleNamespace(unique_name="dp:0", device_group=dp, cpu_group=None)
    state._groups = {"dp:0": lambda: coordinator}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", state)
    return world


def test_the_incidents_hang_as_the_ledger_tells_it(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry(monkeypatch)
    _, nccl = recorders
    lines: list[dict[str, Any]] = []
    table = GroupTable(GroupNames("rollout", purpose), lines.append)
    recorder = FlightRecorder()
    nccl.entries = [entry(i, seq=i + 1) for i in range(3)] + [entry(3, seq=4, state="started")]
    nccl.status = {"0": status(-1, -1), "5": status(4, 3, 4)}
    counts = Counts(recorder.status(), ())
    table.absorb(recorder.drain()[0], counts)
    waiting = {"g": 0, "seq": 4, "op": "all_reduce", "dtype": "Int", "n": 2}
    assert table.waiting(counts, recorder.retired()) == (waiting, True)
    told, _ = table.since_last(counts)
    assert told["0"][0] == 4
    assert told["0"][2] == {"all_reduce": 4}
    group = next(line for line in lines if line["k"] == "group")
    assert (group["name"], group["lib"], group["backend"], group["ranks"], group["rank"]) == (
        "rollout.dp", "dp:0", "nccl", [0, 1], 1,
    )  # fmt: skip


def pulse_of_a_wait(folder: Path) -> dict[str, Any]:
    """The first pulse in the ledgers that tells of a wait; this thread is the one that waits."""
    probe = Probe(folder, "rollout", "engine core", 1, {}, purpose=purpose)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.05)
            for ledger in (folder / "ledgers").glob("*.jsonl"):
                for line in map(json.loads, ledger.read_text().splitlines()):
                    if "w" in line:
                        found: dict[str, Any] = line
                        return found
        pytest.fail("no pulse told of a wait")
    finally:
        probe.close()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_rank_that_waits_for_the_device_is_told_where_its_main_thread_is(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str
) -> None:
    """On NCCL the call has returned long ago: the thread sits in `.cpu()`, in the code that called."""
    registry(monkeypatch, backend)
    recorder = recorders[backend == "nccl"]
    recorder.entries = [
        entry(0, f"{backend}:all_reduce"),
        entry(1, f"{backend}:all_reduce", 2, state="started"),
    ]
    recorder.status = {"5": status(2, 1, 2)}
    waiting = pulse_of_a_wait(tmp_path)["w"]
    assert (waiting["seq"], waiting["op"]) == (2, "all_reduce")
    at = waiting.get("at", "").rpartition(":")[0]
    assert at.endswith("test_probe_flight.py") if backend == "nccl" else at == ""


def test_a_rank_in_its_groups_communicator_init_waits_in_the_first_collective(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch has counted the call and records it when NCCL has made the communicator, with all ranks."""
    world = registry(monkeypatch)
    dp = next(pg for pg, name in world.pg_names.items() if name == "15")
    dp._get_sequence_number_for_group = lambda: 1
    pulse = pulse_of_a_wait(tmp_path)
    number = str(pulse["w"]["g"])
    told = {"seq": 1, "op": "communicator init", "dtype": "", "n": None}
    assert {name: pulse["w"][name] for name in told} == told
    assert pulse["c"][number] == [1, 0]
    assert pulse["w"]["at"].rpartition(":")[0].endswith("test_probe_flight.py")


def test_a_group_that_has_called_nothing_or_does_not_tell_is_in_no_init(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = registry(monkeypatch)
    names = GroupNames("rollout", purpose)
    dp = next(pg for pg, name in world.pg_names.items() if name == "15")

    def refuse() -> int:
        raise RuntimeError("ProcessGroup does not support it")

    dp._get_sequence_number_for_group = lambda: 7
    assert names.begun("15") == 7
    dp._get_sequence_number_for_group = refuse
    assert names.begun("15") == names.begun("unknown") == 0
    registry(monkeypatch, "gloo")
    assert names.begun("15") == 0


def test_what_waits_is_asked_for_without_the_stacks_that_take_long(
    recorders: tuple[Recorder, Recorder],
) -> None:
    _, nccl = recorders
    nccl.entries = [entry(0), entry(1, seq=2, state="started")]
    (told,) = FlightRecorder().outstanding()
    assert told["collective_seq_id"] == 2
    assert "frames" not in told


def test_a_coalesced_region_is_one_collective(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`startCoalescing` lets what follows share a number; `endCoalescing` records `nccl:coalesced`, and
    counts it as enqueued.
    """
    registry(monkeypatch)
    _, nccl = recorders
    lines: list[dict[str, Any]] = []
    table = GroupTable(GroupNames("rollout", purpose), lines.append)
    recorder = FlightRecorder()
    nccl.entries = [
        entry(0, seq=1),
        *(entry(i, "nccl:_all_gather_base", 2, sizes=[[i]], out=[[2 * i]]) for i in (1, 2)),
    ]
    nccl.status = {"5": status(1, 1)}
    counts = Counts(recorder.status(), ())
    table.absorb(recorder.drain()[0], counts)
    assert table.since_last(counts)[0]["0"][0] == 1
    nccl.entries += [entry(3, "nccl:coalesced", 2, sizes=[]), entry(4, seq=3)]
    nccl.status = {"5": status(3, 3)}
    counts = Counts(recorder.status(), ())
    table.absorb(recorder.drain()[0], counts)
    told, runs = table.since_last(counts)
    assert told["0"][0] == 3
    name = "_all_gather_base+_all_gather_base+coalesced"
    assert told["0"][2] == {"all_reduce": 2, name: 1}
    assert sum(repeats for _, repeats in runs["0"]) == 2
    operation = next(line for line in lines if line["k"] == "op" and line["op"] == name)
    assert operation["n"] == 3


def test_a_group_that_completed_out_of_order_does_not_wait(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads of gloo: the third was over before the second, and the last number is the second's."""
    registry(monkeypatch)
    gloo, _ = recorders
    table = GroupTable(GroupNames("rollout", purpose), lambda line: None)
    recorder = FlightRecorder()
    gloo.entries = [entry(i, "gloo:all_reduce", i + 1) for i in range(3)]
    gloo.status = {"5": status(3, 2)}
    counts = Counts(recorder.status(), ())
    table.absorb(recorder.drain()[0], counts)
    assert table.outstanding(counts)
    assert table.pairs(counts) == {"0": [3, 2]}
    assert table.waiting(counts, recorder.retired()) == (None, False)
    assert table.pairs(counts) == {"0": [3, 3]}
    assert not table.outstanding(counts)


def test_what_has_not_retired_is_waited_for(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry(monkeypatch)
    gloo, _ = recorders
    table = GroupTable(GroupNames("rollout", purpose), lambda line: None)
    recorder = FlightRecorder()
    gloo.entries = [entry(i, "gloo:all_reduce", i + 1) for i in range(2)]
    gloo.entries.append(entry(2, "gloo:all_reduce", 3, state="scheduled"))
    gloo.status = {"5": status(3, 2)}
    counts = Counts(recorder.status(), ())
    table.absorb(recorder.drain()[0], counts)
    waiting = {"g": 0, "seq": 3, "op": "all_reduce", "dtype": "Int", "n": 2}
    assert table.waiting(counts, recorder.retired()) == (waiting, True)
    assert table.pairs(counts) == {"0": [3, 2]}


def test_what_no_boundary_has_told_a_pulse_tells_once(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry(monkeypatch)
    _, nccl = recorders
    lines: list[dict[str, Any]] = []
    table = GroupTable(GroupNames("rollout", purpose), lines.append)
    recorder = FlightRecorder()

    def issue(*entries: dict[str, Any]) -> Counts:
        nccl.entries += entries
        nccl.status = {"5": status(nccl.entries[-1]["collective_seq_id"], 0)}
        counts = Counts(recorder.status(), ())
        table.absorb(recorder.drain()[0], counts)
        return counts

    counts = issue(entry(0, seq=1), entry(1, seq=2))
    assert table.untold(counts) == {"0": [2, [[0, 2]]]}
    assert table.untold(counts) == {}
    counts = issue(entry(2, "nccl:broadcast", 3))
    assert table.untold(counts) == {"0": [3, [[0, 2], [1, 1]]]}
    assert [line["op"] for line in lines if line["k"] == "op"] == ["all_reduce", "broadcast"]
    c, s = table.since_last(counts)  # what a boundary tells is the same as if no pulse had told it
    assert (c["0"][0], s["0"]) == (3, [[0, 2], [1, 1]])
    assert table.untold(counts) == {}
    counts = issue(entry(3, seq=4))
    assert table.untold(counts) == {"0": [4, [[0, 1]]]}


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_is_left_as_it_was(
    recorders: tuple[Recorder, Recorder], collects: bool
) -> None:
    recorders[0].entries = [entry(0, "gloo:all_reduce")]
    (gc.enable if collects else gc.disable)()
    try:
        FlightRecorder().drain()
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_a_torch_without_a_recorder_for_gloo_is_named(
    recorders: tuple[Recorder, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["torch._C._distributed_c10d"], "_dump_fr_trace")
    monkeypatch.setattr("lockstep.inside.flight_recorder.version", lambda name: "2.6.0")
    with pytest.raises(RuntimeError, match=r"torch 2\.6\.0 has no flight recorder for gloo"):
        FlightRecorder()
