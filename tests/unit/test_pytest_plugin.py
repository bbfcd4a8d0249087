"""The option for soaks, as another project's test run sees it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.mark.soak
def test_soak(stress_minutes):
    assert stress_minutes == 0.5

@pytest.mark.stress
def test_stress(stress_minutes):
    assert stress_minutes in (0, 0.5)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(SUITE)
    return pytester


def test_a_soak_is_skipped_without_its_minutes(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-rs", "--strict-markers")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*a soak: needs --stress-minutes N"])


def test_a_soak_is_run_with_its_minutes(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess("--strict-markers", "--stress-minutes", "0.5").assert_outcomes(passed=2)


@pytest.mark.parametrize("minutes", ["many", "inf", "nan", "-1"])
def test_minutes_are_a_finite_number(suite: pytest.Pytester, minutes: str) -> None:
    result = suite.runpytest_subprocess("--stress-minutes", minutes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*--stress-minutes: '{minutes}': expected a finite number of minutes, at least 0"]
    )


def test_no_minutes_are_no_soak(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess("--stress-minutes", "0").assert_outcomes(passed=1, skipped=1)
