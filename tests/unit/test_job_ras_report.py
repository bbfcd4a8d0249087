"""Reports as NCCL words them, by its source (`src/ras/client_support.cc`): text (2.24.3 to 2.28.3), JSON
(2.28.9 and later). None was made by a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lockstep.run.ras_report import Launched, read, witness
from lockstep.verdict import GroupView, Kind, RankView, Verdict

HEAD = """\
NCCL version 2.27.3 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          {n}            1          {n}        {n}

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         {n}         {n}         {n}   RUNNING  MISMATCH

Errors
======

{errors}Warnings
========

{warnings}"""

TWO = """\
#0-0 (8a5f3c2b1d0e4f67) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 194 -- GPU 0 (NVML 6) managed by process 100 on node 127.0.0.1
  Rank 1 has launched up to operation 193 -- GPU 0 (NVML 7) managed by process 101 on node 127.0.0.1

"""
SIX = """\
#0-0 (00000000000000ab) MISMATCH
  Communicator ranks have different AllGather operation counts
  5 ranks have launched up to operation 12
  Rank 3 has launched up to operation 11 -- GPU 3 managed by process 103 on node 127.0.0.1

"""
LISTED = """\
#0-0 (00000000000000ab) MISMATCH
  Communicator ranks have different Broadcast operation counts
  4 ranks have not launched any operations
  2 ranks have launched up to operation 1
  Rank 0 -- GPU 0 managed by process 100 on node 127.0.0.1
  Rank 1 -- GPU 1 managed by process 101 on node 127.0.0.1

"""
SILENT = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 101 on node 127.0.0.1 managing GPU 1

#0-0 (00000000000000ab) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 1 managed by process 101 on node 127.0.0.1

"""


def text(n: int, warnings: str = "", errors: str = "") -> str:
    return HEAD.format(n=n, warnings=warnings, errors=errors)


def in_json(counts: dict[int, int], missing: tuple[int, ...] = ()) -> str:
    def rank(number: int, **more: Any) -> dict[str, Any]:
        place = {"rank": number, "host": "127.0.0.1", "pid": 100 + number}
        return {**place, "cuda_dev": number, "nvml_dev": number, **more}

    status = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    ranks = [
        rank(number, status=status, collective_counts={"Broadcast": 0, "AllReduce": count})
        for number, count in counts.items()
    ]
    gone = [rank(number, status={"unresponsive": True, "considered_dead": False}) for number in missing]
    communicator = {"hash": "0x8a5f3c2b1d0e4f67", "secondary_hash": "0x1:0x2",
                    "size": len(counts) + len(missing), "ranks_count": len(counts), "ranks": ranks,
                    "missing_ranks_count": len(missing), "missing_ranks": gone}  # fmt: skip
    whole = {"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [communicator],
             "ras": {"collection_time_sec": 0.1, "timeouts_count": 0}}  # fmt: skip
    return json.dumps(whole, indent=2)


def stuck(waiting: tuple[int, ...], absent: tuple[int, ...], first_pid: int = 100) -> Verdict:
    ranks = tuple(
        RankView(
            rank,
            f"rollout engine core {rank}",
            "waiting" if rank in waiting else "absent",
            pid=first_pid + rank,
        )
        for rank in sorted((*waiting, *absent))
    )
    group = GroupView("rollout.dp", tuple(view.rank for view in ranks), "dp:0", "nccl")
    return Verdict(Kind.STUCK, "stuck", group=group, waiting=waiting, absent=absent, ranks=ranks)


AGREES = "NCCL's own counts agree: rank 0 launched AllReduce 194, rank 1 193"


@pytest.mark.parametrize("report", [text(2, TWO), in_json({0: 194, 1: 193})])
def test_both_formats_tell_the_same_of_two_ranks(report: str) -> None:
    found = read(report)
    (communicator,) = found.communicators
    assert communicator.hash == "8a5f3c2b1d0e4f67"
    assert communicator.differing == {"AllReduce": (Launched(0, 100, 194), Launched(1, 101, 193))}
    assert communicator.faults == ("MISMATCH",)
    assert found.processes == 2
    assert found.as_json is report.startswith("{")
    assert witness(found, stuck((0,), (1,))) == AGREES
    assert "AllReduce rank 0: 194, rank 1: 193" in found.sentence()
    assert json.loads(json.dumps(found.to_json()))["communicators"][0]["faults"] == ["MISMATCH"]


def test_counts_the_other_way_round_contradict_the_verdict() -> None:
    told = witness(read(text(2, TWO)), stuck((1,), (0,)))
    assert told.startswith("NCCL's own counts do NOT agree: rank 1 launched AllReduce 193, rank 0 194")


def test_a_majority_is_not_listed_rank_by_rank() -> None:
    found = read(text(6, SIX))
    assert found.communicators[0].counts == {"AllGather": (Launched(-1, None, 12), Launched(3, 103, 11))}
    told = witness(found, stuck((0, 1, 2, 4, 5), (3,)))
    assert told == "NCCL's own counts agree: ranks 0, 1, 2, 4, 5 launched AllGather 12, rank 3 11"
    counts = read(text(6, LISTED)).communicators[0].counts["Broadcast"]
    assert counts == (Launched(-1, None, 0), Launched(0, 100, 1), Launched(1, 101, 1))
    assert witness(read(text(6, LISTED)), stuck((0, 1), (2, 3, 4, 5))).startswith("NCCL's own counts agree")


def test_other_processes_and_equal_counts_say_nothing() -> None:
    assert witness(read(text(2, TWO)), stuck((0,), (1,), first_pid=900)) == ""
    equal = read(in_json({0: 5, 1: 5}))
    assert (equal.communicators[0].faults, witness(equal, stuck((0,), (1,)))) == ((), "")
    assert "no counts that differ" in equal.sentence()
    assert witness(read(text(2, TWO)), Verdict(Kind.STALLED, "stalled")) == ""


def test_a_rank_that_does_not_answer_is_named() -> None:
    broken = in_json({0: 194}, missing=(1,)).replace('"nvml_dev": 1,\n', '"nvml_dev": 1\n')
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)  # as NCCL 2.28.9 writes it, without the comma
    for report in (text(2, errors=SILENT), in_json({0: 194}, missing=(1,)), broken):
        found = read(report)
        assert found.communicators[0].missing == (1,)
        assert found.communicators[0].faults == ("INCOMPLETE",)
        assert (
            witness(found, stuck((0,), (1,))) == "NCCL's own counts: rank 1 of a communicator did not answer"
        )
    assert found.as_json


@pytest.mark.parametrize(
    "garbage", ["", "{", "{}", '{"communicators": 7}', "[]", "ERROR: Unknown command", "\0" * 9]
)
def test_what_is_no_report_says_nothing_and_raises_nothing(garbage: str) -> None:
    found = read(garbage)
    assert (found.communicators, found.processes, found.text) == ((), None, garbage)
    assert witness(found, stuck((0,), (1,))) == ""
