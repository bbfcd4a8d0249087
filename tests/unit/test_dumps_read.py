"""Files into dumps: versions and forms of the format, names of files, the two lanes, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dump_files import DEFECTS, WORLD, Rank, job, torch_pickle, write
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.dumps import DumpError, read_directory
from lockstep.dumps.model import Dump, GroupKey, Operations
from lockstep.dumps.pickled import PickledDump
from lockstep.dumps.read import parse, read_dump

DATA = Path(__file__).parent.parent / "data" / "dumps"


def parsed(data: bytes, *, fast: bool = True) -> tuple[Dump, list[Any]]:
    operations = Operations()
    return parse(data, Dump("x", "p", 0, ""), operations, fast=fast), operations.by_number


def told(data: bytes, *, fast: bool = True) -> dict[GroupKey, Any]:
    """What a dump says, in terms that do not depend on how it was read."""
    dump, operations = parsed(data, fast=fast)
    return {
        key: (
            trace.backend,
            trace.first,
            [operations[c] for c in trace.calls],
            trace.uneven,
            trace.cut,
            trace.last_at,
            [(replace(o, call=0), operations[o.call]) for o in trace.open + trace.transfers],
        )
        for key, trace in dump.traces.items()
    } | {GroupKey("", "", -1): (dump.version, dump.ranks, dump.records, dump.whole, dump.last_ns)}


def damage(data: bytes) -> DumpError:
    """What is wrong with a dump of which the first records can be read."""
    found = parsed(data)[0].damage
    assert found is not None
    return found


def a_rank(records: int = 60, **changes: Any) -> Rank:
    rank = job(8, records, only=[5], **changes)[5]
    rank.issue(WORLD, "all_to_all", sizes=([[3]], [[4]]))
    rank.transfer(WORLD, "send 5->0")
    rank.transfer(WORLD, "recv 5<-1", state="started")
    rank.issue(WORLD, "all_reduce", 8, "Half", state="scheduled")
    return rank


def test_real_dumps_of_gloo_are_read() -> None:
    found = read_directory(DATA / "gloo-torch-2.8")
    assert [dump.rank for dump in found.dumps] == [0, 1]
    assert not found.failed
    dump = found.dumps[0]
    assert dump.version == "2.9"
    assert dump.records == 33
    trace = dump.traces[GroupKey("1", "hello", None)]
    ops = [found.operations.by_number[call].op for call in trace.calls]
    assert ops[:6] == ["all_reduce", "broadcast", "barrier", "all_gather", "all_gather", "all_reduce"]
    assert [o.seq for o in trace.open] == [29]
    assert trace.open[0].at == "user/mk.py:7"


def test_a_real_dump_says_the_same_in_json() -> None:
    pickled, in_json = (read_directory(DATA / f"gloo-torch-2.8{form}").dumps for form in ("", "-json"))
    for one, other in zip(pickled, in_json, strict=True):
        assert {k: (t.first, t.calls) for k, t in one.traces.items()} == {
            k: (t.first, t.calls) for k, t in other.traces.items()
        }


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_fast_lane_reads_what_the_machine_reads(backend: str) -> None:
    rank = a_rank()
    rank.backend = backend
    data = rank.pickled()
    assert told(data) == told(data, fast=False)


@pytest.mark.parametrize("name", DEFECTS)
def test_the_lanes_agree_on_every_defect(name: str) -> None:
    ranks = job(8, 40)
    DEFECTS[name][0](ranks)
    for rank in ranks.values():
        assert told(rank.pickled()) == told(rank.pickled(), fast=False)


def test_most_records_go_by_the_fast_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(
        PickledDump,
        "_learn",
        lambda self, entry, learn=PickledDump._learn: (read.append(entry), learn(self, entry)),
    )
    dump, _ = parsed(job(8, 500, only=[0])[0].pickled())
    assert dump.records == 500
    assert len(read) < 10


def test_json_says_what_the_pickle_says_but_for_stacks() -> None:
    rank = a_rank()
    for entry in rank.entries:
        del entry["frames"]
    assert told(rank.json()) == told(rank.pickled())


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_dump_stored_again_by_python_is_a_dump(protocol: int) -> None:
    rank = a_rank(1200)
    assert told(rank.stored_again(protocol)) == told(rank.pickled())
    rank.entries = rank.entries[:1]
    assert told(rank.stored_again(protocol)) == told(rank.pickled())


_THREAD = ("thread_name", "thread_id")
_LATER = {
    "2.1": ("input_dtypes", "output_dtypes", "timeout_ms", *_THREAD),
    **dict.fromkeys(("2.2", "2.3", "2.4"), _THREAD),
    **dict.fromkeys(("2.5", "2.6", "2.7", "2.8", "2.9", "2.10"), ()),
}
"""Keys that a version's records do not have yet."""


@pytest.mark.parametrize("version", _LATER)
def test_every_version_is_read(version: str) -> None:
    rank = a_rank()
    for entry in rank.entries:
        for key in _LATER[version]:
            del entry[key]
    top = rank.top(version)
    if version in ("2.1", "2.2"):
        del top["pg_status"], top["nccl_version"]
    if version == "2.10":
        top["comm_lib_version"] = top.pop("nccl_version")
    dump, operations = parsed(torch_pickle(top))
    assert dump.version == version
    assert dump.records == len(rank.entries)
    assert (operations[0].dtype == "") == (version == "2.1")
    assert told(torch_pickle(top)) == told(torch_pickle(top), fast=False)


def test_durations_on_some_records_only() -> None:
    rank = a_rank()
    for i, entry in enumerate(rank.entries):
        if i % 3:
            rest = {k: entry.pop(k) for k in list(entry)[list(entry).index("input_sizes") :]}
            entry.update(duration_ms=0.5, **rest)
    assert told(rank.pickled()) == told(rank.pickled(), fast=False)


def test_operations_inside_a_coalesced_one_count_once() -> None:
    rank = Rank(0, {"0": ("default_pg", [0, 1])})
    rank.issue("0", "all_reduce", 3)
    rank.issue("0", "_all_gather_base", 5)
    rank.issue("0", "_all_gather_base", 6, same=True)
    rank.issue("0", "coalesced", sizes=([], []), same=True)
    rank.issue("0", "all_reduce", 3)
    dump, operations = parsed(rank.pickled())
    (trace,) = dump.traces.values()
    assert (trace.first, trace.last) == (1, 3)
    assert operations[trace.calls[1]].op == "_all_gather_base+_all_gather_base+coalesced"
    assert trace.calls[0] == trace.calls[2]


def test_what_lies_before_a_gap_is_dropped() -> None:
    rank = Rank(0, {"0": ("default_pg", [0, 1])})
    for _ in range(9):
        rank.issue("0", "all_reduce")
    del rank.entries[3]
    (trace,) = parsed(rank.pickled())[0].traces.values()
    assert (trace.first, trace.last, len(trace.calls)) == (5, 9, 5)
    assert trace.cut


def test_names_of_files(tmp_path: Path) -> None:
    rank = a_rank()
    for name in ("nccl_trace_rank_0", "nccl_trace_rank_11", "rank_2.json", "README.md", "notes"):
        (tmp_path / name).write_bytes(rank.json() if name.endswith("json") else rank.pickled())
    assert [(d.prefix, d.rank) for d in read_directory(tmp_path).dumps] == [
        ("nccl_trace_rank_", 0),
        ("nccl_trace_rank_", 11),
        ("rank_", 2),
    ]


def test_what_cannot_be_read_is_named_with_its_byte(tmp_path: Path) -> None:
    data = a_rank().pickled()
    (tmp_path / "r0").write_bytes(data)
    (tmp_path / "r1").write_bytes(data[:2000])
    (tmp_path / "r2").write_bytes(data[:200])
    found = read_directory(tmp_path)
    assert [dump.rank for dump in found.dumps] == [0]
    assert [dump.rank for dump in found.damaged] == [1]
    for error, name in [(found.damaged[0].damage, "r1"), (found.failed[0], "r2")]:
        assert str(error).startswith(f"{tmp_path / name}: byte ")
        assert "the file ends here" in str(error)


@pytest.mark.parametrize("form", ["pickled", "json"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.97])
def test_the_records_before_the_damage_are_read(form: str, share: float) -> None:
    rank = job(8, 60, only=[5])[5]
    data: bytes = getattr(rank, form)()
    dump, operations = parsed(data[: int(len(data) * share)])
    whole, all_operations = parsed(data)
    assert dump.damage
    assert not whole.damage
    assert 0 < dump.records <= whole.records
    for key, trace in dump.traces.items():
        told = [all_operations[call] for call in whole.traces[key].calls[: len(trace.calls)]]
        assert [operations[call] for call in trace.calls] == told
        assert trace.first == whole.traces[key].first
        assert trace.last_at == ("model/parallel.py:41" if form == "pickled" else None)


def test_damage_in_the_middle_of_json_is_named_with_its_byte() -> None:
    data = job(8, 60, only=[5])[5].json()
    at = data.index(b'"state"', len(data) // 2)
    dump, _ = parsed(data[:at] + b"\0" + data[at + 1 :])
    assert dump.damage
    assert dump.damage.place in (at, at + 1)
    assert 20 < dump.records < 60


def test_what_is_over_the_limit_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = a_rank().pickled()
    monkeypatch.setattr("lockstep.dumps.read.MAX_FILE", len(data) // 2)
    dump, _ = parsed(data)
    assert dump.damage
    assert "larger than" in dump.damage.what
    assert 0 < dump.records < 60


@pytest.mark.parametrize("name", ["x" * 5000, "\0"])
def test_a_path_that_cannot_be_asked_for_is_an_error_of_the_reader(name: str) -> None:
    with pytest.raises(DumpError, match=r"expected a directory|cannot list it"):
        read_directory(name)


def test_a_folder_that_may_not_be_read_is_an_error_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refused)
    with pytest.raises(DumpError, match="cannot list it: Permission denied"):
        read_directory(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x80\x02N.", b"{}", b'{"version":"2.9","entries":[{}]}', b"\x80\x02](NNe."]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r0").write_bytes(content)
    with pytest.raises(DumpError, match="r0: "):
        read_directory(tmp_path)


def test_a_directory_without_dumps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no dump here"):
        read_directory(tmp_path)
    with pytest.raises(DumpError, match="no such directory"):
        read_directory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("key", "value"),
    [("process_group", "0"), ("process_group", ("0", 1)), ("profiling_name", "all_reduce"), ("state", "lost"),
     ("state", None), ("collective_seq_id", -1), ("collective_seq_id", None), ("input_sizes", [[-1]]),
     ("input_sizes", [1]), ("input_sizes", [[2**40, 2**40]]),
     ("input_dtypes", [1]), ("time_created_ns", "now")],
)  # fmt: skip
def test_a_record_that_is_not_one_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    rank = a_rank()
    rank.entries[3][key] = value
    for data in (rank.stored_again(), rank.json()):
        assert damage(data)
        assert parsed(data)[0].records == 3
    rank.entries[:3] = []
    for data in (rank.stored_again(), rank.json()):
        with pytest.raises(DumpError):
            parsed(data)


@pytest.mark.parametrize("version", ["1.5", "3.0", "2", "", None, 2.9])
def test_another_major_version_is_refused(version: Any) -> None:
    top = a_rank().top() | {"version": version}
    with pytest.raises(DumpError, match="version"):
        parsed(torch_pickle(top))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mutated_dumps_never_crash_and_the_lanes_agree(data: st.DataObject) -> None:
    source = bytearray(_SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(source) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                source[at] = data.draw(st.integers(0, 255))
            case 1:
                del source[at : at + data.draw(st.integers(1, 8))]
            case 2:
                source[at:at] = data.draw(st.binary(max_size=8))
            case _:
                other = data.draw(st.integers(0, len(source) - 1))
                source[at : at + 20] = source[other : other + 20]
    outcomes = []
    for fast in (True, False):
        try:
            damaged = parsed(bytes(source), fast=fast)[0].damage
            outcomes.append({} if damaged else told(bytes(source), fast=fast))
        except DumpError:
            outcomes.append({})
    # The machine follows every reference, and may find damage that the lane has passed over.
    if all(outcomes):
        assert outcomes[0] == outcomes[1]


_SMALL = a_rank(12).pickled()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_json_never_crashes(data: st.DataObject) -> None:
    source = bytearray(a_rank(3).json())
    at = data.draw(st.integers(0, len(source) - 1))
    source[at : at + data.draw(st.integers(0, 9))] = data.draw(
        st.binary(max_size=9) | st.sampled_from([b"[[", b"1e999", b"null", b"{}"])
    )
    with suppress(DumpError):
        parsed(bytes(source))


def test_one_file_alone(tmp_path: Path) -> None:
    write({5: a_rank()}, tmp_path)
    (path,) = tmp_path.iterdir()
    assert read_dump(path, Operations(), "p", 5).rank == 5
    with pytest.raises(DumpError, match="cannot read it"):
        read_dump(tmp_path / "none0", Operations(), "p", 5)


def test_the_fixtures_hold_no_more_than_they_should() -> None:
    assert json.loads((DATA / "gloo-torch-2.8-json" / "fr_0.json").read_text())["version"] == "2.9"
