"""Feeds mutated inputs to a reader: `python fuzz/run.py dumps|logs|scripts [--inputs 1000000]`.

No input may raise an error other than the reader's own, take longer than `--seconds`, or need more memory
than `--memory` MiB of address space on top of what the process has at its start. Such an input is kept in
`--out`, and the exit code is 1.

With `--engine atheris` (which must be installed, and instruments the code) inputs are chosen by what they
reach; the default is a mutator of our own, several times as fast on these formats, whose every input follows
from `--seed` and its number: `--only N` repeats one.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent))

from targets import TARGETS, Target


def mutate(target: Target, number: int, seed: int) -> bytes:
    """Input `number`: a seed with one to eight changes, most of them of a few bytes."""
    rng = random.Random(seed * 1_000_003 + number)
    data = bytearray(rng.choice(target.seeds))
    for _ in range(1 + int(rng.random() ** 3 * 8)):
        at = rng.randrange(len(data) + 1)
        length = 1 + int(rng.random() ** 4 * 64)
        match rng.randrange(9):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1:
                data[at : at + 1] = bytes((data[at] ^ 1 << rng.randrange(8),)) if at < len(data) else b""
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = rng.randbytes(length)
            case 4:
                data[at:at] = rng.choice(target.tokens)
            case 5:
                token = rng.choice(target.tokens)
                data[at : at + len(token)] = token
            case 6:
                data[at:at] = data[at : at + length] * rng.choice((1, 1, 2, 50))
            case 7:
                other = rng.choice(target.seeds)
                start = rng.randrange(len(other) + 1)
                data[at : at + length] = other[start : start + length * 4]
            case _:
                del data[at : None if rng.random() < 0.1 else at + 1]
    return bytes(data[: 1 << 20])


class Slow(BaseException):
    """Not an Exception: no reader may take it for one of its own."""


def _alarm(_signal: int, _frame: FrameType | None) -> None:
    raise Slow


class Runner:
    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.target = TARGETS[name]()
        self.name = name
        self.out: Path = args.out
        self.seconds: float = args.seconds
        self.bad = 0
        self.taken = 0
        self.slowest = 0.0
        signal.signal(signal.SIGALRM, _alarm)
        self.target(self.target.seeds[0])
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = size + args.memory * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def one(self, data: bytes, label: str) -> None:
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            self.taken += self.target(data)
        except (Exception, Slow):
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.bad += 1
            self.out.mkdir(parents=True, exist_ok=True)
            path = self.out / f"{self.name}-{label}"
            path.write_bytes(data)
            path.with_suffix(".txt").write_text(traceback.format_exc())
            print(f"input {label}: {traceback.format_exc(limit=-2)}kept as {path}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.slowest = max(self.slowest, time.perf_counter() - started)

    def report(self, count: int, started: float) -> str:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return (
            f"{self.name}: {count} inputs in {time.monotonic() - started:.0f} s, {self.taken} of them read, "
            f"{self.bad} bad, slowest {self.slowest:.2f} s, peak memory {peak:.0f} MiB"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run this input alone, without limits")
    parser.add_argument("--seconds", type=float, default=5.0, help="what one input may take")
    parser.add_argument("--memory", type=int, default=512, help="MiB of address space to be had on top")
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--out", type=Path, default=Path(".lockstep/fuzz"))
    args = parser.parse_args()
    if args.only is not None:
        target = TARGETS[args.target]()
        print("read" if target(mutate(target, args.only, args.seed)) else "refused")
        return 0
    return _atheris(args) if args.engine == "atheris" else _own(args)


def _own(args: argparse.Namespace) -> int:
    runner = Runner(args.target, args)
    started = told = time.monotonic()
    for number in range(args.start, args.start + args.inputs):
        runner.one(mutate(runner.target, number, args.seed), str(number))
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(runner.report(number + 1 - args.start, started), flush=True)
    print(runner.report(args.inputs, started), flush=True)
    return 1 if runner.bad else 0


def _atheris(args: argparse.Namespace) -> int:
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["lockstep"]):
        target = TARGETS[args.target]()
    corpus = args.out / f"corpus-{args.target}"
    corpus.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(target.seeds):
        (corpus / f"seed-{i}").write_bytes(seed)
    options = [
        f"-runs={args.inputs}",
        f"-timeout={int(args.seconds) or 1}",
        f"-rss_limit_mb={args.memory * 4}",
        f"-seed={args.seed}",
        f"-artifact_prefix={args.out}/",
        "-max_len=40000",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: target(data) and None)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
