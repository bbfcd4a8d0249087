"""The pickle reader: it reads plain data as Python does, and refuses everything else with the byte where it
is.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import textwrap
import time

import pytest
from dump_files import Rank, torch_pickle
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.dumps.errors import MAX_DEPTH, MAX_FILE, MAX_ITEMS, MAX_TEXT, DumpError, Malformed
from lockstep.dumps.model import Dump, Operations
from lockstep.dumps.pickle_reader import Machine
from lockstep.dumps.read import parse


def run(data: bytes) -> object:
    machine = Machine(data)
    machine.run()
    assert machine.ended
    (value,) = machine.stack
    return value


def refused(data: bytes) -> Malformed:
    with pytest.raises(Malformed) as caught:
        run(data)
    return caught.value


_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(value=_PLAIN, protocol=st.integers(2, 5))
def test_plain_data_is_read_as_python_reads_it(value: object, protocol: int) -> None:
    assert run(pickle.dumps(value, protocol)) == value


@given(value=_PLAIN)
def test_torchs_way_of_writing_is_read_as_python_reads_it(value: object) -> None:
    data = torch_pickle(value)
    assert run(data) == pickle.loads(data)


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch should-not-be-there",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_would_run_something_is_refused(protocol: int) -> None:
    error = refused(pickle.dumps({"entries": _Runs()}, protocol))
    assert "GLOBAL" in error.what
    assert error.place


@pytest.mark.parametrize(
    "body",
    [
        b"cos\nsystem\n",
        b"(S'x'\nios\nsystem\n",
        b"P1\n",
        b"Q",
        b"\x82\x01",
        b"\x8b\x01\x00\x00\x001",
        b"I1\n",
        b"2",
        b"0",
    ],
)
def test_other_opcodes_are_refused_where_they_are(body: bytes) -> None:
    assert refused(b"\x80\x02N" + body + b".").place == (4 if body.startswith(b"(S") else 3)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80\x02", "ends here"),
        (b"\x80\x02X\xff\xff\x00\x00ab", "ends here"),
        (b"\x80\x02X\xff\xff\xff\x7fab", "a string of"),
        (b"\x80\x02\x8a\xff" + b"1" * 255 + b".", "an integer of 255 bytes"),
        (b"\x80\x02h\x07.", "a reference to object 7"),
        (b"\x80\x02j\xff\xff\xff\xff.", "a reference to object 4294967295"),
        (b"\x80\x02}(K\x01K\x02u.", "a int as a key"),
        (b"\x80\x02}(NK\x02u.", "a NoneType as a key"),
        (b"\x80\x02}(X\x01\x00\x00\x00au.", "a key without a value"),
        (b"\x80\x02N(Ne.", "not a list"),
        (b"\x80\x02N(NNu.", "not a dict"),
        (b"\x80\x02NN\x86.", "a pair"),
        (b"\x80\x09N.", "protocol 9"),
        (b"\x80\x02" + b"](" * (MAX_DEPTH + 1), "nested deeper"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, what: str) -> None:
    assert what in refused(data).what


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02" + b"N" * (MAX_ITEMS + 2),
        b"\x80\x02" + b"".join(b"Nr" + struct.pack("<I", i) for i in range((1 << 20) + 2)),
        b"\x80\x02](" + (b"](" + b"]" * 1000 + b"e") * 5000,
        b"\x80\x02Nr\xff\xff\xff\xffj\xff\xff\xff\xff" + b"N" * (MAX_ITEMS + 2),
        b"\x80\x02X" + struct.pack("<I", MAX_TEXT + 1) + b"a" * (MAX_TEXT + 1),
        b"\x80\x02N" + b"\x85" * 100_000,
        b"\x80\x02]" + b"2" * 100_000,
    ],
    ids=["stack", "memo", "objects", "memo index", "text", "tuples", "dup"],
)
def test_bombs_are_refused_in_seconds(bomb: bytes) -> None:
    started = time.process_time()
    refused(bomb)
    assert time.process_time() - started < 10


def test_lists_that_are_shared_a_thousandfold_do_not_multiply_the_work() -> None:
    rank = Rank(0, {"0": ("default_pg", [0, 1])})
    shape = [1] * 4000
    sizes = [shape] * 4000
    for _ in range(50):
        rank.issue("0", "all_reduce", sizes=(sizes, sizes))
    # The file would have 1.6e9 numbers in it; with the list remembered once it has few.
    data = rank.stored_again()
    assert len(data) < 1 << 20
    started = time.process_time()
    with pytest.raises(DumpError, match="sizes and frames in all"):
        parse(data, Dump("x", "", 0, ""), Operations())
    assert time.process_time() - started < 20


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(DumpError, match="larger than"):
        parse(b"\x80" + bytes(MAX_FILE), Dump("x", "", 0, ""), Operations())


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by RLIMIT_AS")
def test_memory_is_bounded_by_the_limits() -> None:
    """The worst that 64 MiB can ask for: as many objects as there may be, each as costly as it can be for its
    bytes.
    """
    code = """
        import resource, struct
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        from lockstep.dumps.errors import MAX_FILE, DumpError
        from lockstep.dumps.model import Dump, Operations
        from lockstep.dumps.read import parse
        lists = b"](" + b"]" * 100_000 + b"e"
        for body in (b"\\x80\\x02](" + lists * 60, b"\\x80\\x02" + (b"(" + b"]" * 131_000) * 15,
                     b"\\x80\\x02}(X\\x07\\x00\\x00\\x00entries](" + b"}(u" * 3_000_000,
                     b'{"version":"2.9","entries":[' + b"{}," * 20_000_000,
                     b'{"version":"2.9","pg_config":' + b'{"a":' * 5_000_000):
            try:
                parse(body, Dump("x", "", 0, ""), Operations())
            except DumpError as error:
                print(str(error)[:100])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 5


@settings(max_examples=300)
@given(data=st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_clear_error(data: bytes) -> None:
    for head in (b"", b"\x80\x02}("):
        machine = Machine(head + data)
        try:
            machine.run()
        except Malformed as error:
            outcome = error
        else:
            outcome = None
        assert outcome is None or (outcome.what and 0 <= (outcome.place or 0) <= len(head + data))
