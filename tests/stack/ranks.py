"""Runs a function on real gloo ranks with the probe attached, and reads what they wrote.

Ranks are forked from the test's own process, which must not have run an operation of torch: importing torch
anew in each would take most of the time. They meet through a file, so no port is taken.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lockstep.inside.recorder import Probe
from lockstep.record import read_directory
from lockstep.verdict import Verdict, judge

Body = Callable[[Probe, int], None]


def run(
    directory: Path,
    body: Body,
    size: int = 2,
    *,
    ring: int = 2000,
    seconds: float | None = None,
    probed: bool = True,
) -> list[int | None]:
    """Exit statuses of `size` ranks that run `body(probe, rank)`; with `seconds`, they are killed then."""
    directory.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(directory, body, rank, size, ring, probed))
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    until = time.monotonic() + (seconds or 60)
    for rank in ranks:
        rank.join(max(0.0, until - time.monotonic()))
    late = [rank for rank in ranks if rank.exitcode is None]
    for rank in late:
        rank.kill()
        rank.join()
    assert seconds or not late, "ranks did not come to an end"
    return [rank.exitcode for rank in ranks]


def _rank(directory: Path, body: Body, rank: int, size: int, ring: int, probed: bool) -> None:
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        torch.set_num_threads(1)
        os.environ["TORCH_FR_BUFFER_SIZE"] = str(ring)
        probe = Probe(directory, "trainer", "rank", rank, {}) if probed else None
        store = dist.FileStore(str(directory / "store"), size)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=90)
        )
        body(probe, rank)  # type: ignore[arg-type]  # a body that is run without a probe does not use it
        if probe is not None:
            probe.close()
        status = 0
    except BaseException:
        (directory / f"failed-{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def lines(directory: Path, rank: int, k: str | None = None) -> list[dict[str, Any]]:
    """The lines of a rank's ledger, of one kind if `k` is given."""
    (path,) = (directory / "ledgers").glob(f"trainer-rank-{rank}-*.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in found if k in (None, line["k"])]


def streams(
    directory: Path, rank: int, name: str = "trainer.world"
) -> list[list[tuple[str, str, int | None]]]:
    """What the group issued up to each boundary since the one before, decoded; checked against its counts."""
    ops: dict[int, tuple[str, str, int | None]] = {}
    number = None
    count = 0
    told: list[list[tuple[str, str, int | None]]] = []
    for line in lines(directory, rank):
        if line["k"] == "op":
            ops[line["id"]] = line["op"], line["dtype"], line["n"]
        elif line["k"] == "group" and line["name"] == name:
            number = str(line["g"])
        elif line["k"] == "boundary":
            runs = line["s"].get(number, [])
            told.append([ops[op] for op, repeats in runs for _ in range(repeats)])
            if number in line["c"]:
                issued, _, tally = line["c"][number]
                assert issued == sum(tally.values())
                assert len(told[-1]) == issued - count
                count = issued
    return told


def verdict(directory: Path, settle_s: float = 3.0) -> Verdict:
    return judge(read_directory(directory), settle_s=settle_s)
