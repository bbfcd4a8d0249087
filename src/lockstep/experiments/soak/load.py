"""`python -S load.py N`: keeps N cores busy until it is ended. The twin of a host that others use too."""

from __future__ import annotations

import os
import sys


def main(processes: int) -> None:
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    while True:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
