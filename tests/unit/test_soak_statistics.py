"""The bounds of a rate: against published values, and what they mean."""

from __future__ import annotations

import math

import pytest

from lockstep.experiments.soak.statistics import interval


@pytest.mark.parametrize(
    ("hangs", "rounds", "low", "high"),
    [
        # scipy 1.16.3, binomtest(hangs, rounds).proportion_ci(method="exact")
        (1, 2, 0.01257911709367899, 0.987420882906321),
        (1, 100, 0.0002531460326818928, 0.054459385392080666),
        (10, 500, 0.00963142958643335, 0.03647240829220842),
        (499, 500, 0.9889075231009973, 0.9999493656659925),
    ],
)
def test_exact_interval(hangs: int, rounds: int, low: float, high: float) -> None:
    assert interval(hangs, rounds) == pytest.approx((low, high), rel=1e-9)


def test_without_a_hang_it_is_the_rule_of_three() -> None:
    low, high = interval(0, 1000)
    assert low == 0.0
    assert high == pytest.approx(3 / 1000, rel=0.005)
    # The rate at which a thousand rounds come through once in twenty times, by its definition.
    assert (1 - high) ** 1000 == pytest.approx(0.05)
    assert interval(5, 5) == (pytest.approx(0.05 ** (1 / 5)), 1.0)


def test_the_bounds_are_where_the_tails_have_their_share() -> None:
    def at_most(k: int, n: int, p: float) -> float:
        return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))

    low, high = interval(7, 60, confidence=0.9)
    assert at_most(7, 60, high) == pytest.approx(0.05)
    assert 1 - at_most(6, 60, low) == pytest.approx(0.05)


def test_thousands_of_rounds_are_within_the_numbers() -> None:
    low, high = interval(2000, 50_000)
    assert 0.038 < low < 0.04 < high < 0.042


@pytest.mark.parametrize(("hangs", "rounds"), [(0, 0), (1, 0), (-1, 5), (6, 5)])
def test_no_such_count(hangs: int, rounds: int) -> None:
    with pytest.raises(ValueError, match=f"got {hangs} of {rounds}"):
        interval(hangs, rounds)
