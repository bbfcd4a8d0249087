"""The checks themselves, one a process: `python -m lockstep.gpu_check.inside NAME`.

The last line printed is what was seen; a check that fails ends with an exception.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.gpu_check import pair
from lockstep.gpu_check.expectation import expect

CAPTURES = 30
"""How many graphs are captured while another thread reads."""
SLEEP_CYCLES = 2_000_000_000
"""Of the GPU's clock: about a second."""


def toolchain() -> str:
    """Builds as Triton does at its first kernel, by Triton's own function."""
    from triton.backends.nvidia.driver import include_dirs, libraries, library_dirs
    from triton.runtime.build import _build

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "check.c")
        source.write_text(
            "#include <Python.h>\n#include <cuda.h>\nCUresult lockstep_check(void) { return cuInit(0); }\n"
        )
        built = _build("check", str(source), folder, library_dirs(), include_dirs, libraries)
        return f"built and linked {Path(built).name}"


def deepspeed() -> str:
    import deepspeed
    import torch
    from deepspeed.ops.op_builder.builder import installed_cuda_version

    release = ".".join(map(str, installed_cuda_version()))
    return f"deepspeed {deepspeed.__version__}; nvcc tells {release}, torch has {torch.version.cuda}"


def recorder() -> str:
    """Records, numbers and retirement in NCCL's recorder, by a group of one rank."""
    import torch
    import torch.distributed as dist

    from lockstep.inside.flight_recorder import NCCL, FlightRecorder

    reader, tensor = _alone(), torch.zeros(2, dtype=torch.int32, device="cuda")
    for _ in range(3):
        dist.all_reduce(tensor)
    tensor.cpu()
    time.sleep(1.0)  # the watchdog, which notes what is over, looks every tenth of a second
    status, (entries, lost) = reader.status(), reader.drain()
    own = [e for e in entries if e.op == "all_reduce" and e.pg[0] == NCCL]
    expect(not lost, f"no record lost, got {lost}")
    expect([e.seq for e in own] == [1, 2, 3], f"all-reduces 1, 2, 3, got {own}")
    expect([e.n for e in own] == [2, 2, 2], f"sizes of 2, got {own}")
    names = set(dist.distributed_c10d._world.pg_names.values())
    expect(own[0].names[0] in names, f"a name of {names}, got {own[0].names}")
    pg = own[0].pg
    numbers = (status.enqueued.get(pg), status.completed.get(pg))
    expect(numbers == (3, 3), f"3 issued and 3 completed, got {numbers}")
    expect((pg, 3) in reader.retired(), "the last one retired")
    assert isinstance(reader, FlightRecorder)
    return f"3 of 3 records of {own[0].dtype}, group {own[0].names}, numbers {numbers}, retired"


def waiting() -> str:
    """A rank that waits for the device: behind in numbers, its main thread outside torch.distributed."""
    import torch
    import torch.distributed as dist

    from lockstep.inside.flight_recorder import NCCL
    from lockstep.inside.main_thread import MainThread, issuing_line

    reader, main = _alone(), MainThread()
    seen: list[tuple[str | None, str, str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            status = reader.status()
            if any(pg[0] == NCCL and n > status.completed[pg] for pg, n in status.enqueued.items()):
                seen.append((main.park(), main.line(), issuing_line()))

    tensor = torch.zeros(2, dtype=torch.int32, device="cuda")
    dist.all_reduce(tensor)  # makes the communicator
    torch.cuda.synchronize()
    thread = threading.Thread(target=look)
    thread.start()
    torch.cuda._sleep(SLEEP_CYCLES)
    dist.all_reduce(tensor)
    tensor.cpu()
    over.set()
    thread.join()
    expect(bool(seen), "to be seen waiting")
    park, line, issuing = seen[len(seen) // 2]
    expect(line.partition(":")[0].endswith("gpu_check/inside.py"), f"its line in this file, got {line!r}")
    told = repr(issuing) if issuing else "nowhere, as read"
    return f"seen {len(seen)} times: parked in {park}, at {line}; inside torch.distributed: {told}"


def capture(guarded: bool) -> str:
    """CUDA graphs captured right after an eager collective, while another thread reads records."""
    import torch
    import torch.distributed as dist

    from lockstep.inside.capture import RelaxedThread

    reader, relaxed = _alone(), RelaxedThread()
    relaxed.note_device()
    over, problems, reads = threading.Event(), [], 0

    def read() -> None:
        nonlocal reads
        while not over.wait(0.002):
            if guarded:
                relaxed.enter()
            try:
                reader.retired()
                reads += 1
            except Exception as error:
                problems.append(f"a read failed: {first_line(error)}")

    tensor = torch.zeros(2, dtype=torch.int32, device="cuda")
    x = torch.zeros(64, 64, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    thread = threading.Thread(target=read)
    thread.start()
    failed = 0
    try:
        for _ in range(CAPTURES):
            dist.all_reduce(tensor)  # not retired for up to a tenth of a second
            tensor.cpu()
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):  # mode "global", as vLLM has it
                    for _ in range(200):
                        x = x + 1
            except Exception as error:
                failed += 1
                problems.append(first_line(error))
                torch.cuda.synchronize()
    finally:
        over.set()
        thread.join()
    expect(reads > 0, "to read during the captures")
    text = f"{failed} of {CAPTURES} captures failed during {reads} reads"
    if guarded:
        expect(not problems, f"none failed, got {text}: {problems[:1]}")
    return "; ".join([text, *problems[:1]])


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _alone() -> Any:
    """Makes this process the only rank of an NCCL group; returns a reader of its recorder."""
    import torch
    import torch.distributed as dist

    from lockstep.inside.flight_recorder import FlightRecorder

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    return FlightRecorder()


BODIES: dict[str, Callable[[], str]] = {
    "toolchain": toolchain,
    "deepspeed": deepspeed,
    "recorder": recorder,
    "waiting": waiting,
    "capture, plain": lambda: capture(guarded=False),
    "capture, guarded": lambda: capture(guarded=True),
    "hang of two": lambda: pair.hang("nccl"),
    "PyNccl": pair.pynccl,
    "RAS": pair.ras,
}


def main(name: str) -> int:
    try:
        print(BODIES[name](), flush=True)
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} ended with {error.returncode}: {(error.stderr or '')[-500:]}")
        return 1
    except Exception as error:
        print(first_line(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
