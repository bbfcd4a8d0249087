# ruff: noqa: E501 (lines of logs)
"""A message that a terminal, a table or a mail has broken anywhere is still one message."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable

import pytest

from lockstep.diagnose import Diagnosis, conclude
from lockstep.diagnose.scan import scan

MESSAGES = {
    "timeout": "[rank11]:[E909 09:55:29.200000001 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=310, OpType=_ALLGATHER_BASE, NumelIn=100, NumelOut=800, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
    "old timeout": "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802211 milliseconds before timing out.",
    "stuck": "[rank2]:[E429 10:55:49.384372190 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API hang blocking the watchdog.",
    "barrier": "[rank0]: RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 120000 ms",
    "store barrier": "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:9 (world_size=4, worker_count=2, timeout=0:30:00)",
    "gpu memory": "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.15 GiB of which 312.25 MiB is free.",
    "gloo": "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete",
    "exit": "E0304 01:00:40.515000 14700 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 0 (pid: 14750) of binary: /usr/bin/python",
    "ecc": "[rank3]:[E512 07:20:11.100000001 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
    "dead engine": "(APIServer pid=7712) ERROR 11-06 18:33:12 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
}
AROUND = "[rank7]: step 41 of 900\n{}\n[rank7]: step 42 of 900\n"


def through(message: str) -> Diagnosis:
    return conclude(scan(io.BytesIO(AROUND.format(message).encode()), "x").events, [])


def facts(found: Diagnosis) -> tuple[object, ...]:
    group = found.group
    said = re.sub(r" at \d\d:\d\d:\d\d", "", found.conclusion)[:60].split(": ")[0]
    return found.cause, said, group and (group.seq, group.elements, group.waiting)


@pytest.mark.parametrize("name", MESSAGES)
def test_broken_once_anywhere_within_words(name: str) -> None:
    whole = facts(through(MESSAGES[name]))
    line = MESSAGES[name]
    wrong = [at for at in range(60, len(line) - 1) if facts(through(line[:at] + "\n" + line[at:])) != whole]
    assert len(wrong) <= len(line) // 50, [line[at - 12 : at] + "|" + line[at : at + 12] for at in wrong]


@pytest.mark.parametrize("name", MESSAGES)
def test_broken_once_anywhere_between_words(name: str) -> None:
    whole = facts(through(MESSAGES[name]))
    line = MESSAGES[name]
    places = [at for at in range(60, len(line)) if line[at] == " "]
    wrong = [at for at in places if facts(through(line[:at] + "\n" + line[at + 1 :])) != whole]
    assert not wrong, [line[at - 12 : at] + "|" + line[at : at + 12] for at in wrong]


def hard(line: str, width: int) -> list[str]:
    return [line[at : at + width] for at in range(0, len(line), width)]


def soft(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=True)


WAYS: dict[str, Callable[[str, int], str]] = {
    "terminal": lambda line, width: "\n".join(hard(line, width)),
    "mail": lambda line, width: "\n".join(soft(line, width)),
    "quoted mail": lambda line, width: "\n".join("> " + part for part in soft(line, width)),
    "table": lambda line, width: "\n".join(f"│ {part:<{width}} │" for part in soft(line, width)),
    "plain table": lambda line, width: "\n".join(f"| {part:<{width}} |" for part in soft(line, width)),
    "windows": lambda line, width: "\r\n".join(hard(line, width)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MESSAGES)
def test_wrapped_at_every_width(name: str, way: str) -> None:
    whole = facts(through(MESSAGES[name]))
    wrong = [width for width in range(70, 140) if facts(through(WAYS[way](MESSAGES[name], width))) != whole]
    assert len(wrong) <= 3, wrong


def test_two_messages_are_not_made_one() -> None:
    one, other = MESSAGES["gpu memory"].split(". Tried")[0], "[rank5]: all is well"
    found = conclude(scan(io.BytesIO(f"{one}\n{other}\n".encode()), "x").events, [])
    assert found.first is not None
    assert "rank5" not in found.first.quote
    halves = "RuntimeError: CUDA error: out of\n[rank1]: memory is plenty\n"
    assert conclude(scan(io.BytesIO(halves.encode()), "x").events, []).cause != "out-of-memory-first"
