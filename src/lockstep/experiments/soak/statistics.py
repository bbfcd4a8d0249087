"""How sure a count of hangs makes us of their rate. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = 200
"""Halvings of the unit interval: more than a double has bits."""


def interval(hangs: int, rounds: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's exact interval of the rate of hangs per round, after `hangs` in `rounds`.

    Where nothing hung only the upper bound says something, and it gets all of the error: 1 - 0.05 **
    (1/rounds), of which 3/rounds, the rule of three, is the usual approximation. In the same way where
    every round hung. Raises ValueError if there is no such count.
    """
    if not 0 <= hangs <= rounds or rounds == 0:
        raise ValueError(f"expected 0 <= hangs <= rounds and at least one round, got {hangs} of {rounds}")
    error = 1.0 - confidence
    if hangs == 0:
        return 0.0, 1.0 - error ** (1.0 / rounds)
    if hangs == rounds:
        return error ** (1.0 / rounds), 1.0
    low = _solve(lambda p: 1.0 - _at_most(hangs - 1, rounds, p) > error / 2)
    high = _solve(lambda p: _at_most(hangs, rounds, p) < error / 2)
    return low, high


def _solve(passed: Callable[[float], bool]) -> float:
    """The rate from which on `passed` is true; it is false below and true above it."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if passed(middle) else (middle, high)
    return high


def _at_most(k: int, n: int, p: float) -> float:
    """The probability of at most `k` hangs in `n` rounds at the rate `p`."""
    if p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 1.0 if k >= n else 0.0
    logs = (
        math.lgamma(n + 1)
        - math.lgamma(i + 1)
        - math.lgamma(n - i + 1)
        + i * math.log(p)
        + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))
