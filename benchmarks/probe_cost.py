"""What the probe costs: steps with and without it, alternating, in one run; shares and ratios only.

    nox -s bench

Two pairs of gloo ranks, one with the probe and torch's flight recorder, one with neither, run the same block
of steps in turns (in every other turn the pair without goes first). By default a step is the pinned CPU
job's, four times as short: one second, of which most is computing, with 80 collectives of mixed sizes and six
boundaries. Prints the probe's own processor time as a share of the steps; the ratios of a pair of blocks,
with to without, as median and range, in processor time and on the clock (which a busy machine blurs); and how
long the probe's parts take. Exits with 1 if the two differ in their number of collectives, or the share is
above `--limit`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

RANKS = 2
SIZES = (1, 64, 1024, 16384, 4, 256)
PARTS = {"boundary": "boundary", "turn": "_turn", "drain": "_read", "pulse": "_beat"}
"""What is timed -> the method. The first is called by the job; the second, by the probe's thread, holds the
others.
"""
NAMES = ("generate begin", "generate end", "weight sync begin", "weight sync end", "step", "wave end")


class Load(NamedTuple):
    """What a block is made of."""

    steps: int
    compute_s: float
    collectives: int
    ring: int


class _Worker:
    """One rank: runs blocks of steps when told to, and says how long each took."""

    def __init__(self, rank: int, directory: Path, probed: bool, load: Load) -> None:
        os.environ["TORCH_FR_BUFFER_SIZE"] = str(load.ring if probed else 0)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist, self._load = torch, dist, load
        self._running = False
        self.probe: Any = None
        self.parts: dict[str, list[float]] = {}
        if probed:
            from lockstep.inside.recorder import Probe

            self.probe = Probe(directory, "trainer", "rank", rank, {})
            for name, method in PARTS.items():
                self._time(name, method)
        store = dist.FileStore(str(directory / "store"), RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        self._matrix = torch.ones(256, 256)
        self._tensors = [torch.ones(n) for n in SIZES]

    def _time(self, name: str, method: str) -> None:
        call: Callable[..., Any] = getattr(self.probe, method)
        spent = self.parts[name] = []

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time()
            result = call(*args, **kwargs)
            if self._running:
                spent.append(time.thread_time() - begun)
            return result

        setattr(self.probe, method, timed)

    def calibrate(self) -> int:
        """How many products of matrices a step has: the same for both pairs, so one rank finds it out."""
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            for _ in range(20):
                self._matrix @ self._matrix
            times.append((time.perf_counter() - begun) / 20)
        return round(self._load.compute_s / statistics.median(times))

    def block(self, rounds: int, timed: bool) -> tuple[float, float]:
        """Seconds on the clock and of processor time."""
        self._dist.barrier()
        self._running = timed
        begun, used = time.perf_counter(), time.process_time()
        for _ in range(self._load.steps):
            self._step(rounds)
        self._running = False
        return time.perf_counter() - begun, time.process_time() - used

    def _step(self, rounds: int) -> None:
        for name in NAMES:
            for _ in range(rounds // len(NAMES)):
                self._matrix @ self._matrix
            for i in range(self._load.collectives // len(NAMES)):
                self._dist.all_reduce(self._tensors[i % len(SIZES)])
            if self.probe:
                self.probe.boundary(name)

    def count(self) -> int:
        number: int = self._dist.group.WORLD._get_sequence_number_for_group()
        return number


def _serve(rank: int, directory: Path, probed: bool, load: Load, pipe: Connection) -> None:
    worker = _Worker(rank, directory, probed, load)
    pipe.send(None)
    while (order := pipe.recv()) != "end":
        pipe.send(worker.calibrate() if order == "calibrate" else worker.block(*order))
    count = worker.count()
    if worker.probe:
        worker.probe.close()
    pipe.send((count, worker.parts))


class _Pair:
    """The ranks of one group, with or without the probe."""

    def __init__(self, directory: Path, probed: bool, load: Load) -> None:
        context = multiprocessing.get_context("spawn")
        directory.mkdir()
        self._pipes: list[Connection] = []
        for rank in range(RANKS):
            here, there = context.Pipe()
            context.Process(target=_serve, args=(rank, directory, probed, load, there), daemon=True).start()
            there.close()
            self._pipes.append(here)

        for pipe in self._pipes:
            pipe.recv()

    def calibrate(self) -> int:
        self._pipes[0].send("calibrate")
        rounds: int = self._pipes[0].recv()
        return rounds

    def block(self, rounds: int, timed: bool = True) -> tuple[float, float]:
        """Seconds on the clock, of the slower rank, and of processor time, of both."""
        for pipe in self._pipes:
            pipe.send((rounds, timed))
        clock, used = zip(*(pipe.recv() for pipe in self._pipes), strict=True)
        return max(clock), sum(used)

    def end(self) -> tuple[list[int], dict[str, list[float]]]:
        for pipe in self._pipes:
            pipe.send("end")
        ends = [pipe.recv() for pipe in self._pipes]
        return [count for count, _ in ends], ends[0][1]


def _ratios(what: str, times: list[dict[bool, float]]) -> None:
    ratios = sorted(time[True] / time[False] for time in times)
    median = statistics.median(ratios)
    print(f"{what}, with / without: median {median:.4f}, range {ratios[0]:.4f} to {ratios[-1]:.4f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--pairs", type=int, default=6, help="pairs of blocks, one with and one without the probe"
    )
    parser.add_argument("--steps", type=int, default=2, help="steps in a block")
    parser.add_argument("--compute", type=float, default=1.0, help="seconds that a step computes")
    parser.add_argument("--collectives", type=int, default=80, help="collectives in a step")
    parser.add_argument("--ring", type=int, default=1000, help="records that the flight recorder keeps")
    parser.add_argument("--limit", type=float, default=0.01, help="highest share of a step to exit with 0")
    options = parser.parse_args()
    load = Load(options.steps, options.compute, options.collectives, options.ring)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [_Pair(Path(folder) / str(probed), probed, load) for probed in (False, True)]
        rounds = pairs[False].calibrate()
        for pair in pairs:
            pair.block(rounds, timed=False)  # the first of everything takes longer
        clock: list[dict[bool, float]] = []
        used: list[dict[bool, float]] = []
        for i in range(options.pairs):
            times = {
                probed: pairs[probed].block(rounds) for probed in ((False, True) if i % 2 else (True, False))
            }
            clock.append({probed: time[0] for probed, time in times.items()})
            used.append({probed: time[1] for probed, time in times.items()})
        (without, _), (with_probe, parts) = pairs[False].end(), pairs[True].end()
    steps = sum(time[True] for time in clock)
    own = sum(parts["boundary"]) + sum(parts["turn"])
    step_s = steps / options.pairs / load.steps
    print(f"{options.pairs} pairs of blocks of {load.steps} steps of {step_s:.2f} s and {load.collectives} "
          f"collectives, ring of {load.ring} records")  # fmt: skip
    print(f"the probe's own time: {own / steps:.2%} of a step")
    _ratios("processor time", used)
    _ratios("clock", clock)
    print(f"collectives of each rank: with {with_probe}, without {without}")
    for name, spent in parts.items():
        print(f"{name}: {len(spent)} calls, median {statistics.median(spent) * 1e6:.0f} us, "
              f"longest {max(spent) * 1e6:.0f} us, {sum(spent) / steps:.3%} of a step")  # fmt: skip
    return 0 if own / steps <= options.limit and {*with_probe} == {*without} else 1


if __name__ == "__main__":
    sys.exit(main())
