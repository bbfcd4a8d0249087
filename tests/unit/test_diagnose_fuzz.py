"""Whatever the input, the reader ends, in bounded time, without an error of its own."""

from __future__ import annotations

import io
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.diagnose import conclude
from lockstep.diagnose.line_patterns import TRIGGERS
from lockstep.diagnose.render import render, to_json
from lockstep.diagnose.scan import scan

LOGS = Path(__file__).parent.parent / "data" / "logs"
SEEDS = [path.read_bytes() for path in sorted(LOGS.glob("*.log"))]
_QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_PIECES = [
    *TRIGGERS,
    *(
        b"[rank",
        b"]:[E1206 21:12:01.85 ProcessGroupNCCL.cpp:685] ",
        b"[PG ID 5 PG GUID 15 Rank 0]",
        b"[Rank 0] ",
    ),
    *(
        b"WorkNCCL(SeqNum=",
        b", OpType=ALLREDUCE, NumelIn=2, NumelOut=2, Timeout(ms)=600000) ran for 1 milliseconds",
    ),
    *(
        b"last enqueued work: -1, last completed work: ",
        b"\r",
        b"\n",
        b"\r\n",
        b"> ",
        b"\x1b[36m",
        b"|",
        b"%|",
    ),
    *(
        b"99999999999999999999",
        b"exitcode  : -9 (pid: 1)",
        b"[" * 50,
        b"(" * 50,
        b"a" * 20_000,
        b"\0",
        b"\xff",
    ),
    b"1: " * 30,
]


def whole_way(raw: bytes) -> None:
    start = time.process_time()
    result = scan(io.BytesIO(raw), "x")
    assert result.bytes == len(raw)
    found = conclude(result.events, [])
    to_json(found)
    render(found)
    for event in result.events:
        assert 1 <= event.line <= result.lines + 1
    assert time.process_time() - start < 5 + len(raw) / 1e6


@_QUICK
@given(st.binary(max_size=4000))
def test_any_bytes(raw: bytes) -> None:
    whole_way(raw)


@_QUICK
@given(st.lists(st.sampled_from(_PIECES), max_size=60))
def test_pieces_of_messages_in_any_order(pieces: list[bytes]) -> None:
    whole_way(b"".join(pieces))


@_QUICK
@given(st.data())
def test_damaged_logs(data: st.DataObject) -> None:
    raw = bytearray(b"".join(data.draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3))))
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, max(0, len(raw) - 1)))
        how = data.draw(st.sampled_from(("drop", "insert", "change", "repeat")))
        length = data.draw(st.integers(1, 200))
        if how == "drop":
            del raw[at : at + length]
        elif how == "insert":
            raw[at:at] = data.draw(st.sampled_from(_PIECES))
        elif how == "change":
            raw[at : at + 4] = data.draw(st.binary(max_size=8))
        else:
            raw[at:at] = raw[at : at + length]
    whole_way(bytes(raw))


@_QUICK
@given(st.sampled_from(SEEDS), st.integers(1, 64))
def test_reading_in_small_pieces_gives_the_same(raw: bytes, size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, n: int | None = -1, /) -> bytes:
            return super().read(size * 97)

    whole = scan(io.BytesIO(raw), "x")
    assert scan(Slow(raw), "x").events == whole.events


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 8000))
def test_a_message_at_the_end_of_a_chunk(before: int) -> None:
    filler = b"all is well\n" * ((1 << 20) // 12 - 700) + b"x" * before + b"\n"
    found = conclude(scan(io.BytesIO(filler + (LOGS / "incident.log").read_bytes()), "x").events, [])
    assert found.cause == "offline-wave-race"
    assert found.first is not None
    assert found.first.line == filler.count(b"\n") + 7


def test_lines_that_never_end() -> None:
    whole_way(b"ProcessGroup " * 400_000)
    whole_way(b"x" * 5_000_000)
    whole_way(b"\r" * 3_000_000)
    whole_way(b"\n" * 3_000_000)
    whole_way((b"[" * 10_000 + b"WorkNCCL(" + b"\r") * 300)
