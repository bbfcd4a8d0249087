"""The checks of two ranks, each a process that sees one GPU.

One of them is `python -m lockstep.gpu_check.pair WHAT RANK PORT`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.env import PAIR, PAIR_STAYS
from lockstep.gpu_check.expectation import expect
from lockstep.run.ports import free_ports, release_ports

HOST = "127.0.0.1"
STUCK_S = 60.0
"""Longest wait for the verdict on a hang, from the start of the ranks on."""
MET = "met"
"""What a rank prints when it has met its peer."""
MET_S = 90.0


def hang(backend: str) -> str:
    """Two ranks meet, then one stays away: the verdict must be `stuck`, with ranks, operation and line."""
    from lockstep.record import LedgerError, read_directory
    from lockstep.verdict import Kind, judge

    with tempfile.TemporaryDirectory() as folder, _ranks(f"hang-{backend}", Path(folder)) as ranks:
        until = time.monotonic() + STUCK_S
        while True:
            time.sleep(0.5)
            for rank in ranks:
                expect(rank.poll() is None, f"ranks that hang, got one that ended: {_tail(Path(folder))}")
            with contextlib.suppress(LedgerError):  # no rank has begun its ledger yet
                verdict = judge(read_directory(folder), now=time.time())
                if verdict.kind is Kind.STUCK:
                    break
            expect(
                time.monotonic() < until, f"the verdict stuck within {STUCK_S:.0f} s: {_tail(Path(folder))}"
            )
        said = f"{verdict.kind.value}: {verdict.sentence}"
        expect((verdict.waiting, verdict.absent) == ((0,), (1,)), f"rank 0 to wait for rank 1, got {said}")
        expect(verdict.seq == 4, f"number 4 to be the one, got {said}")
        (first,) = [view for view in verdict.ranks if view.rank == 0]
        issued = first.issued_at or ""
        expect("gpu_check/pair.py:" in issued, f"the line that issued it, got {issued!r} in {said}")
        return said


def pynccl() -> str:
    """vLLM's communicator between two processes that see one GPU each, as the weight sync has it."""
    with tempfile.TemporaryDirectory() as folder, _ranks("pynccl", Path(folder)) as ranks:
        _await_met(ranks, Path(folder))
        said = [(Path(folder) / f"rank-{rank}.log").read_text().splitlines()[-1] for rank in (0, 1)]
        expect(said == [f"{MET} 7.0"] * 2, f"7.0 on both ranks, got {said}")
        return "a broadcast between two sets of visible devices arrived"


def ras() -> str:
    """One question to NCCL's RAS while two ranks hold a communicator."""
    from lockstep.run import ras

    (port,) = free_ports(1, HOST)
    try:
        more = {"NCCL_RAS_ENABLE": "1", "NCCL_RAS_ADDR": f"{HOST}:{port}"}
        with tempfile.TemporaryDirectory() as folder, _ranks("hold", Path(folder), more) as ranks:
            _await_met(ranks, Path(folder))
            report = ras.ask(HOST, port)
            expect(report.processes == 2, f"2 processes, got {report.processes} in {report.text[:300]!r}")
            return report.sentence()
    finally:
        release_ports([port])


def _await_met(ranks: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    until = time.monotonic() + MET_S
    while not all(MET in (folder / f"rank-{rank}.log").read_text() for rank in (0, 1)):
        expect(all(rank.poll() in (None, 0) for rank in ranks), f"both ranks to live: {_tail(folder)}")
        expect(time.monotonic() < until, f"the ranks to meet within {MET_S:.0f} s: {_tail(folder)}")
        time.sleep(0.2)


def _tail(folder: Path) -> str:
    logs = [(folder / f"rank-{rank}.log").read_text().strip().splitlines()[-1:] for rank in (0, 1)]
    return "; ".join(f"rank {rank}: {''.join(lines)[:300]}" for rank, lines in enumerate(logs))


@contextlib.contextmanager
def _ranks(
    what: str, folder: Path, more: dict[str, str] | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Both ranks, each with its own GPU; ended when the block is left."""
    (port,) = free_ports(1, HOST)
    visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word] or ["0", "1"]
    (folder / "ledgers").mkdir()
    ranks = []
    try:
        for rank in (0, 1):
            own = {"CUDA_VISIBLE_DEVICES": visible[rank]} if what != "hang-gloo" else {}
            env = os.environ | own | {PAIR: str(folder)} | (more or {})
            argv = [sys.executable, "-m", "lockstep.gpu_check.pair", what, str(rank), str(port)]
            with (folder / f"rank-{rank}.log").open("wb") as log:
                ranks.append(subprocess.Popen(argv, env=env, stdout=log, stderr=subprocess.STDOUT))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        release_ports([port])


# -- in a rank


def _hang(backend: str, rank: int, port: int) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from lockstep.inside.recorder import Probe

    probe = Probe(Path(os.environ[PAIR]), "trainer", "rank", rank, {})
    device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    store = dist.TCPStore(HOST, port, 2, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    tensor = torch.zeros(2, dtype=torch.int32, device=device)
    probe.boundary("train begin", 0)
    for _ in range(3):
        dist.all_reduce(tensor)
    tensor.cpu()
    probe.boundary("step", 1)
    print(MET, flush=True)
    if rank == 0 or PAIR_STAYS in os.environ:  # in a test of this check
        dist.all_reduce(tensor)
        tensor.cpu()
    threading.Event().wait()  # for nobody; one that sleeps might come yet


def _pynccl(rank: int, port: int) -> None:
    import torch
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.utils import StatelessProcessGroup

    torch.cuda.set_device(0)
    group = StatelessProcessGroup.create(host=HOST, port=port, rank=rank, world_size=2)
    communicator = PyNcclCommunicator(group, device=0)
    tensor = torch.full((4,), 7.0 if rank == 0 else 0.0, device="cuda")
    communicator.broadcast(tensor, src=0)
    torch.cuda.synchronize()
    print(f"{MET} {tensor[0].item()}", flush=True)
    group.barrier()


def _hold(rank: int, port: int) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    store = dist.TCPStore(HOST, port, 2, is_master=rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    tensor = torch.zeros(2, device="cuda")
    dist.all_reduce(tensor)
    tensor.cpu()
    print(MET, flush=True)
    time.sleep(600)


def main(what: str, rank: int, port: int) -> None:
    if what.startswith("hang-"):
        _hang(what.removeprefix("hang-"), rank, port)
    elif what == "pynccl":
        _pynccl(rank, port)
    else:
        _hold(rank, port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
