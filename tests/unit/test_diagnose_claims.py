# ruff: noqa: E501 (lines of logs)
"""What may be claimed of a log: the cause, the ranks, the words; and what must not be."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from lockstep.diagnose import Diagnosis, conclude, diagnose
from lockstep.diagnose.render import render
from lockstep.diagnose.scan import scan

LOGS = Path(__file__).parent.parent / "data" / "logs"


def of(name: str) -> Diagnosis:
    return diagnose([str(LOGS / f"{name}.log")])


def through(text: str) -> Diagnosis:
    return conclude(scan(io.BytesIO(text.encode()), "x").events, [])


# log, cause, what the first sentence says, what the whole answer must not say
CLAIMS: list[tuple[str, str | None, tuple[str, ...], tuple[str, ...]]] = [
    ("crossed-disjoint-groups", "unknown", ("ranks 0-1", "waited in ALLREDUCE number 41"), ("control-flow",)),
    ("crossed-lost-status", "unknown", ("ranks 0-2", "BROADCAST number 7"), ("control-flow",)),
    ("unlabelled-groups-merged", "unknown", ("does not tell its groups apart",), ("control-flow", "mixed")),
    (
        "allreduce-sizes-differ",
        "rank-dependent-control-flow",
        ("rank 0 waited in ALLREDUCE of 9000000", "rank 1 waited in ALLREDUCE of 1 "),
        ("image", "ranks 0-1 of"),
    ),
    (
        "engine-dead-after-rpc-timeout",
        "unknown",
        ("got no answer to execute_model at 10:06:00", "whoever should have answered hangs"),
        ("rank-died: found",),
    ),
    (
        "absent-though-status-says-waits",
        "unknown",
        ("ranks 0-1", "number 310"),
        ("did not come", "absent: 1"),
    ),
    (
        "absent-by-missing-log",
        "unknown",
        ("rank 6", "no line tells of its peers"),
        ("did not come", "absent: 0"),
    ),
    (
        "sizes-differ-not-said",
        "unknown",
        ("rank 0 waited in _ALLGATHER_BASE of 65536", "rank 1 waited in _ALLGATHER_BASE of 16 "),
        ("ranks 0-1 of", "image"),
    ),
    ("server-only-no-trainer", "unknown", ("rank 1", "GATHER number 880"), ("the trainer only waited",)),
    (
        "monitored-barrier-names-ranks",
        "unknown",
        ("ranks 2-3 did not come to a monitored barrier", "rank 0 waited 120000 ms"),
        (),
    ),
    (
        "store-based-barrier-torch1",
        "unknown",
        ("rank 3 waited", "store_based_barrier_key:9", "2 of 4 ranks came"),
        ("never-connected",),
    ),
    (
        "ray-actor-died-thread-limit",
        "rank-died",
        ("no more threads", "Resource temporarily"),
        ("memory ran",),
    ),
    ("oom-hip", "out-of-memory-first", ("rank 2 ran out of GPU memory",), ("trainer",)),
    ("oom-k8s", "out-of-memory-first", ("ran out of host memory (OOMKilled)",), ("trainer",)),
    ("shell-killed", "rank-died", ("killed by SIGKILL", "host memory is the likely reason"), ("found GPU",)),
    ("weight-sync-port-taken", "weight-sync-interrupted", ("port in use at 10:29:14",), ("rank-died",)),
    (
        "nccl-system-error",
        "unknown",
        ("NCCL failed: unhandled system error", "10.0.0.9<45123>", "Connection refused"),
        ("trainer and rollout",),
    ),
    ("cuda-error-ecc", "rank-died", ("rank 3's GPU failed at 07:20:11", "ECC"), ()),
    ("launcher-sigterm", "rank-died", ("ended from outside by SIGTERM at 01:00:36",), ()),
    ("wrapped-heartbeat", "unknown", ("rank 2's NCCL watchdog got no further for 480 s",), ("dump signal",)),
    ("healthy-slow-load", None, ("nothing to diagnose",), ("shm wait",)),
    ("saving-checkpoint-torchtune", "unknown", ("rank 1", "number 906"), ("slow-storage-or-rank: found",)),
]


@pytest.mark.parametrize(("log", "cause", "said", "unsaid"), CLAIMS, ids=[claim[0] for claim in CLAIMS])
def test_a_log_gives_the_cause_and_the_words(
    log: str, cause: str | None, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    found = of(log)
    text = render(found)
    assert found.cause == cause, text
    for words in said:
        assert words in found.conclusion
    for words in unsaid:
        assert words not in text
    assert "None elements" not in text


# ---- three states of a rank


def timeout(
    rank: int,
    seq: int = 7,
    op: str = "ALLREDUCE",
    size: str = "NumelIn=8, NumelOut=8, ",
    place: int | None = None,
) -> str:
    place = rank if place is None else place
    return (
        f"[rank{rank}]:[E909 09:55:29.200000001 ProcessGroupNCCL.cpp:629] [Rank {place}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, {size}Timeout(ms)=600000) ran for "
        "600021 milliseconds before timing out.\n"
    )


def status(
    rank: int, label: str, seq: int = 7, enqueued: int = 7, completed: int = 6, *, wording: str = "2.8"
) -> str:
    words = {
        "2.3": f"Timeout at NCCL work: {seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: "
        f"{completed}.",
        "2.5": f"Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL "
        f"work: {enqueued}, last completed NCCL work: {completed}.",
        "2.8": f" failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: "
        f"{enqueued}, last completed work: {completed}",
        "heard": "Received a dump signal due to a collective timeout from rank 0 and we will try our best to dump "
        f"the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.This is",
    }[wording]
    return f"[rank{rank}]:[E909 09:55:29.3 ProcessGroupNCCL.cpp:2168] [{label}] {words}\n"


WORLD = "PG ID 0 PG GUID 0(default_pg) Rank {}"


@pytest.mark.parametrize("wording", ["2.5", "2.8"])
def test_a_rank_waits_if_its_own_status_says_so(wording: str) -> None:
    text = timeout(5) + status(5, WORLD.format(5), wording=wording) + status(2, WORLD.format(2), 7, 9, 6)
    group = through(text).group
    assert group is not None
    assert (group.waiting, group.absent) == ((2, 5), ())


def test_a_rank_is_absent_if_it_finished_the_number_before_and_came_no_further() -> None:
    text = timeout(5) + status(5, WORLD.format(5)) + status(2, WORLD.format(2), 0, 6, 6, wording="heard")
    group = through(text).group
    assert group is not None
    assert (group.waiting, group.absent) == ((5,), (2,))
    assert "rank 2 did not come to it" in through(text).conclusion


def test_a_rank_that_heard_of_the_timeout_is_absent_only_if_it_waits_in_nothing() -> None:
    heard = status(2, WORLD.format(2), 0, -1, -1, wording="heard")
    waits = timeout(5) + status(5, WORLD.format(5))
    group = through(waits + heard).group
    assert group is not None
    assert group.absent == (2,)
    elsewhere = timeout(2, 99) + status(2, "PG ID 3 PG GUID 9(tp) Rank 2", 99, 99, 98)
    group = through(waits + heard + elsewhere).group
    assert group is not None
    assert group.absent == ()


def test_the_highest_rank_seen_is_not_the_size_of_a_group() -> None:
    found = through(timeout(6) + status(6, WORLD.format(6)))
    assert found.group is not None
    assert (found.group.size, found.group.absent, found.group.not_seen) == (None, (), ())


def test_a_gather_tells_the_size_and_the_others_are_not_seen() -> None:
    text = timeout(1, op="_ALLGATHER_BASE", size="NumelIn=100, NumelOut=400, ") + status(1, WORLD.format(1))
    found = through(text)
    assert found.group is not None
    assert (found.group.size, found.group.absent, found.group.not_seen) == (4, (), (0, 2, 3))
    assert "not seen: 0, 2-3" in render(found)
    assert [rank.state for rank in found.group.ranks] == ["not seen", "waiting", "not seen", "not seen"]


# ---- identity


@pytest.mark.parametrize("one", [0, 2, 6])
def test_numbers_of_two_groups_under_one_bare_number_are_not_compared(one: int) -> None:
    """Torch 2.3 prints the number that a process gives to a group: two groups of different ranks have the same."""
    text = "".join(
        timeout(rank, 41, op, place=rank % 2)
        + status(rank, f"PG 2 Rank {rank % 2}", 41, 41, 40, wording="2.3")
        for rank, op in (
            (one, "ALLREDUCE"),
            (one + 1, "ALLREDUCE"),
            (one + 2, "BROADCAST"),
            (one + 3, "BROADCAST"),
        )
    )
    found = through(text)
    assert found.cause == "unknown", render(found)
    assert found.group is not None
    assert not found.group.one


def test_operations_of_one_labelled_group_are_compared() -> None:
    text = "".join(
        timeout(rank, 41, op) + status(rank, WORLD.format(rank), 41, 41, 40)
        for rank, op in ((0, "ALLREDUCE"), (1, "BROADCAST"))
    )
    assert through(text).cause == "rank-dependent-control-flow"


def test_one_group_without_labels_is_compared_and_several_are_not() -> None:
    one = timeout(0, 300, "ALLREDUCE") + timeout(1, 300, "_ALLGATHER_BASE")
    assert through(one).cause == "rank-dependent-control-flow"
    assert through(one + timeout(0, 812) + timeout(1, 812)).cause == "unknown"


def test_crossed_groups_need_ranks_that_are_in_both() -> None:
    first, second = "PG ID 2 PG GUID 5(a) Rank {}", "PG ID 3 PG GUID 6(b) Rank {}"
    waits = (
        timeout(0, 41)
        + status(0, first.format(0), 41, 41, 40)
        + timeout(1, 9)
        + status(1, second.format(1), 9, 9, 8)
    )
    assert through(waits).cause == "unknown"
    both = status(1, first.format(1), 0, 40, 40, wording="heard") + status(
        0, second.format(0), 0, 8, 8, wording="heard"
    )
    assert through(waits + both).cause == "rank-dependent-control-flow"


def test_images_are_spoken_of_only_where_the_log_does() -> None:
    text = "".join(
        timeout(rank, 41, size=f"NumelIn={size}, NumelOut={size}, ")
        + status(rank, WORLD.format(rank), 41, 41, 40)
        for rank, size in ((0, 900), (1, 1))
    )
    assert through(text).cause == "rank-dependent-control-flow"
    assert "image" not in render(through(text))
    assert through("model_type: qwen3_vl\n" + text).cause == "mixed-batch"


# ---- effect and cause

GLOO = (
    "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
    "10000ms for recv operation to complete\n"
)
EXIT = (
    "E0304 01:00:40.515000 14700 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) "
    "local_rank: 0 (pid: 14750) of binary: /usr/bin/python\n"
)


def test_a_gloo_timeout_is_a_wait_that_ended_and_the_exit_behind_it_its_effect() -> None:
    found = through(GLOO + EXIT)
    assert found.cause == "unknown", render(found)
    assert "rank 0 waited 10000 ms in a gloo operation for recv" in found.conclusion
    assert all(cause.standing != "found" for cause in found.causes)
    assert any("_dump_fr_trace" in remedy.how for remedy in found.remedies)


def test_glooss_sizes_that_do_not_fit_are_different_collectives() -> None:
    line = "[rank1]: RuntimeError: [enforce fail at /gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 72 vs 4\n"
    found = through(line + EXIT)
    assert found.cause == "rank-dependent-control-flow"
    assert "72 vs 4" in found.conclusion


@pytest.mark.parametrize(
    "wait",
    [
        GLOO,
        timeout(0),
        "TimeoutError: RPC call to sample_tokens timed out.\n",
        "[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_last_forward_ct=8, self.watchdog_timeout=300)\n",
        "[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms\n",
    ],
    ids=["gloo", "nccl", "rpc", "sglang", "barrier"],
)
@pytest.mark.parametrize(
    "end",
    [
        EXIT.replace("exitcode: 1", "exitcode: -9"),
        "ERROR 01-29 08:37:48 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down\n",
        "run.sh: line 7: 20311 Killed                  python train.py\n",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n",
    ],
    ids=["exit", "engine", "killed", "actor"],
)
def test_who_ends_after_a_wait_is_no_cause_and_who_ends_before_it_is(wait: str, end: str) -> None:
    after = through(wait + end)
    assert after.cause == "unknown", render(after)
    assert through(end + "all is well\n" * 200 + wait).cause == "rank-died"


def test_a_set_up_that_was_complete_rules_out_that_ranks_never_connected() -> None:
    ready = "".join(
        f"node:1:2 [{rank}] NCCL INFO comm 0x7f rank {rank} nranks 2 cudaDev {rank} busId 1000 commId 0x1 - Init COMPLETE\n"
        for rank in (0, 1)
    )
    first = "".join(timeout(r, 1) + status(r, WORLD.format(r), 1, 1, -1) for r in (0, 1))
    assert through(first).cause == "never-connected"
    found = through(ready + first)
    assert found.cause == "unknown", render(found)
    assert [(cause.id, cause.standing) for cause in found.causes] == [("never-connected", "ruled out")]
    assert through(ready.splitlines()[0] + "\n" + first).cause == "never-connected"  # one of two


def test_a_work_that_ran_ten_times_its_timeout_says_that_the_watchdog_stood_still() -> None:
    found = through(timeout(0).replace("600021", "6400000"))
    assert "the watchdog itself stood still" in found.conclusion
    assert "stood still" not in render(through(timeout(0)))


# ---- warnings, errors and success

SHM = "(EngineCore_DP0 pid=9) INFO 11-15 09:03:12 [shm_broadcast.py:466] No available {}block found in 60 second{}. \n"


@pytest.mark.parametrize("words", [("shared memory broadcast ", "s"), ("", "")])
@pytest.mark.parametrize(
    "success",
    [
        "INFO:     Application startup complete.\n",
        'INFO:     127.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
        "Train:  61%|######    | 5559/9008 [00:00<00:14,  3.29it/s]\n",
        "{'loss': 0.31, 'grad_norm': 0.5}\n",
    ],
)
def test_a_warning_that_was_followed_by_success_is_nothing(words: tuple[str, str], success: str) -> None:
    assert through(SHM.format(*words)).cause == "unknown"
    assert through(success + SHM.format(*words)).cause == "unknown"
    assert through(SHM.format(*words) + success).cause is None


TRACE = '{0}Traceback (most recent call last):\n{0}  File "a.py", line 3, in <module>\n{0}    go()\n{0}{1}\n'


@pytest.mark.parametrize(
    "prefix", ["", "[rank3]: ", "[rank3]:[rank3]: ", "(WorkerDict pid=12, ip=10.0.0.1) ", "3: "]
)
@pytest.mark.parametrize(
    "end", ["ValueError: no such sample", "my.pkg.Oops: no such sample", "KeyboardInterrupt", "SystemExit: 3"]
)
def test_a_traceback_that_no_rule_knows_is_quoted(prefix: str, end: str) -> None:
    found = through("step 1\n" + TRACE.format(prefix, end) + "bye\n")
    assert found.cause == "unknown", render(found)
    assert end in found.conclusion
    if "rank3" in prefix:
        assert "rank 3" in found.conclusion


def test_an_error_is_nothing_only_if_the_job_went_on_for_long() -> None:
    trace = TRACE.format("", "ValueError: bad sample, skipped")
    steps = "".join(f"{{'loss': 0.{n}}}\n" for n in range(10, 30))
    assert through(trace + steps).cause is None
    assert through(trace + steps[:24]).cause == "unknown"
    assert through(steps + trace).cause == "unknown"


def test_memory_that_ran_out_and_did_no_harm_is_nothing() -> None:
    text = "WARNING: skipped batch: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert through(text).cause == "out-of-memory-first"
    assert through(text + "{'train_runtime': 12.5}\n").cause is None
    assert through(text + EXIT + "{'train_runtime': 12.5}\n").cause is not None


# ---- words


def test_the_first_sentence_does_not_contradict_the_table() -> None:
    for path in sorted(LOGS.glob("*.log")):
        found = diagnose([str(path)])
        if found.group is None:
            continue
        for rank in found.group.ranks:
            if rank.state == "absent":
                assert not re.search(
                    rf"ranks? [\d, -]*\b{rank.rank}\b[\d, -]* (of|waited)", found.conclusion
                ), path
        assert "None elements" not in render(found)


def test_no_group_of_vllm_is_read_into_a_log_of_deepspeed() -> None:
    text = timeout(0, place=0) + status(0, "PG ID 5 PG GUID 15 Rank 0")
    assert any(reading.component == "vLLM" for reading in through(text).group.readings)  # type: ignore[union-attr]
    found = through("[INFO] [launch.py:256:main] process 12 spawned\nusing DeepSpeed\n" + text)
    assert found.group is not None
    assert all(reading.component != "vLLM" for reading in found.group.readings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Out of memory: Killed process 12 (python)\n", "dmesg"),
        ("a.sh: line 7: 20311 Killed    python train.py\n", "dmesg"),
        ("RuntimeError: can't start new thread\n", "ulimit -u"),
        ("[rank3]: CUDA error: uncorrectable ECC error encountered\n", "nvidia-smi -q -d ECC"),
        ("NCCL WARN Call to connect to 10.0.0.9<4> failed : Connection refused\n", "nccl-tests"),
        ("torch.distributed.elastic.x.SignalException: Process 5 got signal: 1\n", "SIGHUP"),
        ("[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms\n", "py-spy"),
        ("OSError: [Errno 98] Address already in use\n", "ss -ltnp"),
    ],
)
def test_what_to_do_is_chosen_by_what_happened(text: str, words: str) -> None:
    assert words in render(through(text))


def test_training_that_had_finished_is_said() -> None:
    found = through("{'train_runtime': 1834.2, 'epoch': 3.0}\n" + timeout(1) + status(1, WORLD.format(1)))
    assert "your training had finished" in render(found)
    assert "training was over" in render(found)
    assert "your training had finished" not in render(through(timeout(1)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Map (num_proc=8):  70%|#######   | 700/1000 [10:00<04:00,  1.0 examples/s]\n", "700 of 1000 (70%)"),
        ("Tokenizing train dataset (num_proc=4):  11%|#   | 11/100 [00:10<01:20]\n", "11 of 100 (11%)"),
        ("INFO: Saving checkpoint to /nfs/c\n", "possibly went on"),
    ],
)
def test_what_was_going_on_is_said_as_possible(line: str, words: str) -> None:
    found = through(line + timeout(1) + status(1, WORLD.format(1)))
    assert words in render(found)
    assert [(cause.id, cause.standing) for cause in found.causes] == [("slow-storage-or-rank", "possible")]


# ---- what an independent reader found


LIGHTNING = (
    "[rank: 1] Child process with PID 5512 terminated with code {}. Forcefully terminating all other processes "
    "to avoid zombies\n"
)


@pytest.mark.parametrize("code", [1, 4, -6])
def test_killed_behind_a_launcher_that_ends_the_others_is_its_consequence(code: int) -> None:
    found = through("[rank1]: RuntimeError: unused parameters\n" + LIGHTNING.format(code) + "Killed\n")
    assert found.cause == "unknown", render(found)
    assert found.conclusion.startswith("rank 1 ended with an error: RuntimeError: unused parameters")
    assert "host memory" not in render(found)


def test_killed_behind_an_error_is_its_consequence_and_alone_or_behind_a_lost_peer_it_is_not() -> None:
    assert through("[rank1]: ValueError: no such sample\nKilled\n").cause == "unknown"
    assert through("step 1\nKilled\n").cause == "rank-died"
    assert through("[rank1]: ConnectionResetError: reset by peer\nKilled\n").cause == "rank-died"
    went_on = "{'loss': 0.5}\n" * 20
    assert through(LIGHTNING.format(1) + went_on + "Killed\n").cause == "rank-died"
    assert "exit code -9 (SIGKILL)" in through(LIGHTNING.format(-9) + "Killed\n").conclusion


@pytest.mark.parametrize(
    "line",
    [
        "[rank1]: torch.OutOfMemoryError: HIP out of memory.\n",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "OutOfMemoryError: CUDA out of memory\n",
    ],
)
def test_memory_of_a_gpu_is_no_memory_of_its_host(line: str) -> None:
    assert "ran out of GPU memory" in render(through(line))
    assert "host memory" not in render(through(line))


def test_a_memory_error_of_python_is_memory_of_the_host() -> None:
    assert "host memory" in through("MemoryError: Unable to allocate: out of memory\n").conclusion


def test_a_dump_signal_of_the_rank_itself_is_not_one_of_another() -> None:
    heard = status(2, WORLD.format(2), 0, 6, 5, wording="heard")
    own = heard.replace("from rank 0", "from this local rank")
    assert "rank 2 found at 09:55:29 that a collective of its own timed out" in through(own).conclusion
    assert "another rank" not in render(through(own))
    assert "that another rank timed out" in through(heard).conclusion


def test_a_rank_that_cannot_take_the_gil_is_named_wherever_it_stands() -> None:
    line = (
        "[rank6]:[E1206 13:01:12.0 ProcessGroupNCCL.cpp:1935] [PG ID 0 PG GUID 0(default_pg) Rank 6] "
        "Could not acquire GIL within 300 ms on exit, possible GIL induced hang\n"
    )
    alone = through(line)
    assert alone.cause == "unknown"
    assert "rank 6 could not take Python's GIL" in alone.conclusion
    assert "py-spy dump --native" in render(alone)
    own = status(2, WORLD.format(2), 0, 6, 5, wording="heard")
    assert "rank 6 could not take Python's GIL" in through(own + line).conclusion
    assert "GIL" not in render(through(own + "step 3: GIL free\n"))


@pytest.mark.parametrize(
    "line",
    [
        "Memory access fault by GPU node-5 (Agent handle: 0x55) on address 0x7f. Reason: Page not present.\n",
        "HW Exception by GPU node-3 (Agent handle: 0x55) reason :GPU Hang\n",
        "GPU core dump failed\n",
        "[rank2]: RuntimeError: HIP error: an illegal memory access was encountered\n",
    ],
)
def test_a_fault_of_an_amd_gpu_is_read_and_gets_the_advice_for_one(line: str) -> None:
    found = through(line)
    assert found.cause == "rank-died", render(found)
    text = render(found)
    assert "amdgpu" in text
    assert "AMD_SERIALIZE_KERNEL=3" in text
    assert "xid" not in text
    cuda = render(through("[rank2]: CUDA error: an illegal memory access was encountered\n"))
    assert "xid" in cuda
    assert "amdgpu" not in cuda


def test_a_group_inside_the_job_is_told_by_the_ranks_of_the_job() -> None:
    label = "PG ID 4 PG GUID 9(DATA_PARALLEL) Rank {}"
    text = timeout(6, place=1) + status(6, label.format(1), 7, 9, 6)
    text += status(4, label.format(0), 0, 6, 6, wording="heard")
    found = through(text)
    assert found.conclusion.startswith("rank 6 of"), found.conclusion
    assert "rank 4 did not come to it" in found.conclusion
    assert any("stack of rank 4" in remedy.name for remedy in found.remedies)
    assert "waiting: 6   absent: 4" in render(found)


def test_a_place_that_no_line_maps_is_not_called_a_rank_of_the_job() -> None:
    text = timeout(6, place=1, op="_ALLGATHER_BASE", size="NumelIn=8, NumelOut=16, ")
    found = through(text + status(6, "PG ID 4 PG GUID 9(DATA_PARALLEL) Rank 1"))
    assert "no line tells what place 0 of the group did" in found.conclusion
    assert "rank 0" not in render(found).split("what to do")[0].replace("rank 0: not seen", "")
    same = timeout(1, op="_ALLGATHER_BASE", size="NumelIn=8, NumelOut=16, ") + status(1, WORLD.format(1))
    assert "no line tells what rank 0 did" in through(same).conclusion


def test_an_earlier_error_of_another_rank_is_said_before_the_wait_for_it() -> None:
    error = "[rank5]: OSError: [Errno 28] No space left on device: '/ckpt'\n"
    wait = timeout(0) + status(0, WORLD.format(0))
    found = through(error + wait)
    assert found.conclusion.startswith("rank 5 had no space left"), found.conclusion
    assert "no line tells of its peers" not in found.conclusion
    for other in (through(wait + error), through(error.replace("rank5", "rank0") + wait)):
        assert other.conclusion.startswith("rank 0"), other.conclusion
        assert "had no space left" not in other.conclusion
    assert "no line tells of its peers" in through(wait).conclusion


@pytest.mark.parametrize(
    "step", ['{{"step": {0}, "loss": 1.1}}\n', "(Runner pid=3) step:{0} - loss:0.1 - x:2\n"]
)
def test_an_error_that_was_caught_and_followed_by_two_steps_is_nothing(step: str) -> None:
    trace = TRACE.format("(RewardManager pid=4500) ", "ValueError: could not parse answer")
    one, two, three = (step.format(number) for number in (41, 42, 43))
    assert through(one + trace + two + three).cause is None
    assert through(one + trace + two).cause == "unknown"
    assert through(one + trace + two + two).cause == "unknown"
    assert through(one + trace + two + three + EXIT).cause == "unknown"


def test_a_controller_that_quotes_a_rank_is_not_the_one_that_ran_out_of_memory() -> None:
    quoted = "(Controller pid=9) x.WorkerGroupError: errors: {}ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    found = through(quoted.format("[Rank 3 Error Snippet]: "))
    assert found.conclusion.startswith("rank 3 ran out of host memory")
    assert "Controller (pid 9) ran out" in through(quoted.format("")).conclusion
    assert "raylet.out" in render(found)
    assert "raylet.out" not in render(through("Out of memory: Killed process 12 (python)\n"))


def test_the_empty_code_of_hccl_yields_to_the_message_behind_it() -> None:
    empty = "[rank4]: EI9999: Inner Error!\n"
    message = "[rank4]: EI0002: The wait execution of the Notify register times out. remote rank: [6].\n"
    assert "waited in HCCL" in through(empty + message).conclusion
    assert "EI9999" in through(empty).conclusion
    assert "hccn_tool" in render(through(message))
    assert "TORCH_FR" not in render(through(message))


def test_an_old_torch_is_not_told_to_record_at_once() -> None:
    old = timeout(0).split(":", 1)[1].replace("[E909 09:55:29.200000001 ", "[E ")
    assert "this torch has no recorder" in render(through(old))
    assert "this torch has no recorder" not in render(through(timeout(0)))
