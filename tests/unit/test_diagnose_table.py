# ruff: noqa: E501 (lines of logs)
"""One line of each dialect, alone in a log: what it is taken for; and lines of healthy logs that sound like it."""

from __future__ import annotations

import io

import pytest

from lockstep.diagnose import Diagnosis, conclude
from lockstep.diagnose.render import render
from lockstep.diagnose.scan import scan

DEATH, MEMORY, MEETING, OPEN = "rank-died", "out-of-memory-first", "never-connected", "unknown"
# line, cause, what the first sentence says
LINES = [
    ("slurmstepd: error: Detected 2 oom-kill event(s) in StepId=99.0 cgroup.", MEMORY, "host memory"),
    ("srun: error: n1: task 3: Out Of Memory", MEMORY, "task 3"),
    ("[ 912.123] Memory cgroup out of memory: Killed process 3131 (python) total-vm:1kB", MEMORY, "3131"),
    (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        MEMORY,
        "host",
    ),
    (
        "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
        MEMORY,
        "host",
    ),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", MEMORY, "LSF"),
    (
        "[rank1]: RuntimeError: NPU out of memory. Tried to allocate 20.00 MiB (NPU 0)",
        MEMORY,
        "rank 1 ran out of NPU",
    ),
    ("RuntimeError: CUDA error: out of memory", MEMORY, "GPU memory"),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        MEMORY,
        "GPU memory",
    ),
    ("ValueError: No available memory for the cache blocks. Try increasing it.", MEMORY, "GPU memory"),
    ("OSError: [Errno 12] Cannot allocate memory", MEMORY, "host memory"),
    ("MemoryError", MEMORY, "host memory"),
    ("command terminated with exit code 137", DEATH, "137 (SIGKILL)"),
    ("trainer-1 exited with code 139", DEATH, "139 (SIGSEGV)"),
    (
        "mpirun noticed that process rank 2 with PID 3131 on node n2 exited on signal 9 (Killed).",
        DEATH,
        "rank 2",
    ),
    (
        "run.sh: line 3: 1234 Segmentation fault      (core dumped) python train.py",
        DEATH,
        "Segmentation fault",
    ),
    ("Fatal Python error: Bus error", DEATH, "Bus error"),
    ("Killed", DEATH, "SIGKILL"),
    (
        "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered",
        DEATH,
        "rank 1 failed: CUDA error",
    ),
    (
        "Mar  1 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus.",
        DEATH,
        "GPU failed",
    ),
    ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", DEATH, "data loader"),
    ("ray.exceptions.NodeDiedError: The node died unexpectedly.", DEATH, "node was lost"),
    (
        "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64: Resource temporarily unavailable",
        DEATH,
        "no more threads",
    ),
    ("OSError: [Errno 28] No space left on device: '/nfs/ck'", OPEN, "no space left"),
    (
        "slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***",
        DEATH,
        "TIME LIMIT",
    ),
    ("slurmstepd: error: *** STEP 123.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***", DEATH, "from outside"),
    (
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 5 got signal: 1",
        DEATH,
        "SIGHUP",
    ),
    (
        "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers",
        DEATH,
        "SIGTERM",
    ),
    ("[rank: 0] Received SIGTERM: 15", DEATH, "SIGTERM"),
    (
        "RuntimeError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        MEETING,
        "port in use",
    ),
    ("EJ0003: Failed to bind the IP port. Reason: bound already. [RuntimeError]", MEETING, "port in use"),
    (
        "DistStoreError: Timed out initializing process group in store based barrier on rank 0, for key: store_based_barrier_key:1 (world_size=8, num_workers_joined=7, timeout=0:30:00 error=None)",
        MEETING,
        "7 of 8 ranks came",
    ),
    (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
        OPEN,
        "port in use",
    ),
    (
        "[rank3]: Waiting in store based barrier to initialize process group for 600 seconds, rank: 3, key: store_based_barrier_key:2 (world_size=4, num_workers_joined=3, timeout=0:30:00)",
        OPEN,
        "rank 3 waits",
    ),
    (
        "ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting for object",
        OPEN,
        "waited in vain for an answer",
    ),
    (
        "[2025-03-09 00:57:15 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300)",
        OPEN,
        "TP0's own watchdog",
    ),
    (
        "EI0006: [PID: 12] Getting socket times out. Reason: Remote Rank did not send the data in time.",
        OPEN,
        "HCCL",
    ),
    ("n1:1:2 [0] NCCL WARN NET/IB : Got async event : port error", OPEN, "NCCL failed"),
    (
        "n1:1:2 [0] NCCL WARN socketPollConnect: Connect to 10.2.0.1<3333> returned 113(No route to host)",
        OPEN,
        "10.2.0.1<3333>",
    ),
    (
        "[rank2]:[F429 10:55:49.38 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 2] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
        OPEN,
        "rank 2 was taken down",
    ),
    (
        "[rank2]:[E429 10:55:49.38 ProcessGroupNCCL.cpp:1414] [PG 0 Rank 2] Heartbeat monitor timed out! Process will be terminated",
        OPEN,
        "rank 2's NCCL watchdog",
    ),
    ("RuntimeError: a thing that no row knows", OPEN, "a thing that no row knows"),
    ("srun: error: n1: tasks 0-3: Exited with exit code 1", OPEN, "exit code 1"),
]
HEALTHY = [
    "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
    "FutureWarning: torch.load could raise RuntimeError: x",
    "INFO: 0 errors, error_file: <N/A>, timeout=600, --ignore_errors",
    "Process exited with code 0",
    "Killing old processes",
    "INFO: Shutting down",
    "node:1:2 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x1 - Init COMPLETE",
    "[rank0]:[W1206 21:12:01.85 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed before",
    "retries on exception: 3, watchdog interval 30 s, signal handlers installed",
]


def through(line: str) -> Diagnosis:
    return conclude(scan(io.BytesIO(f"step 1\n{line}\n".encode()), "x").events, [])


@pytest.mark.parametrize(("line", "cause", "words"), LINES, ids=[line[:40] for line, _, _ in LINES])
def test_a_line_of_a_failure_is_read(line: str, cause: str, words: str) -> None:
    found = through(line)
    assert found.cause == cause, render(found)
    assert words in found.conclusion
    assert found.remedies


@pytest.mark.parametrize("line", HEALTHY, ids=[line[:40] for line in HEALTHY])
def test_a_line_of_a_healthy_log_is_nothing(line: str) -> None:
    assert through(line).cause is None


@pytest.mark.parametrize(
    "prefix", ["[default3]:", "node7: ", "3: ", "(W pid=12, ip=10.0.0.1) ", "> ", "10.8.0.3: "]
)
def test_the_prefix_of_a_launcher_changes_nothing(prefix: str) -> None:
    for line, cause, words in LINES:
        if line == "Killed":
            continue  # it is alone in its line, or it is a word
        found = through(prefix + line)
        assert (found.cause, words in found.conclusion) == (cause, True), (line, found.conclusion)
