"""Looks for jobs whose dumps cost more than their size: `python fuzz/growth.py [--shapes 200]`.

Shapes are those of tests/unit/test_dumps_growth.py, drawn at random, at larger sizes than there. One that
grows faster than its input, in instructions, memory or output, is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit"))

from test_dumps_growth import _FEW, _SLACK, Shape, excess

CHOICES = {
    "grows": sorted(_FEW),
    "backend": ["nccl", "gloo"],
    "described": ["tp", "default_pg", "undefined"],
    "state": ["completed", "scheduled", "started"],
    "op": ["all_reduce", "all_to_all", "_all_gather_base", "gather", "scatter"],
    "cut": [1.0, 0.5],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--size", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    worst, bad = 0.0, 0
    for _ in range(args.shapes):
        shape = Shape(**{field: rng.choice(CHOICES.get(field, [False, True])) for field in Shape._fields})
        found = excess(shape, args.size)
        worst = max(worst, *found)
        if max(found) >= _SLACK:
            bad += 1
            print(
                f"instructions, memory, output: {', '.join(f'{x:.2f}' for x in found)}: {shape}", flush=True
            )
    print(f"{args.shapes} shapes, {bad} bad, the worst grows {worst:.2f} times as fast as its input")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
