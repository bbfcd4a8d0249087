"""The option for soaks, as another project's test run sees it."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.mark.lockstep_soak
def test_soak(stress_minutes):
    assert stress_minutes == 0.5

@pytest.mark.lockstep_stress
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
    result.stdout.fnmatch_lines(["SKIPPED*a soak: needs --lockstep-stress-minutes N"])


def test_a_soak_is_run_with_its_minutes(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess("--strict-markers", "--lockstep-stress-minutes", "0.5").assert_outcomes(
        passed=2
    )


@pytest.mark.parametrize("minutes", ["many", "inf", "nan", "-1"])
def test_minutes_are_a_finite_number(suite: pytest.Pytester, minutes: str) -> None:
    result = suite.runpytest_subprocess("--lockstep-stress-minutes", minutes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*--lockstep-stress-minutes: '{minutes}': expected a finite number of minutes, at least 0"]
    )


def test_no_minutes_are_no_soak(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess("--lockstep-stress-minutes", "0").assert_outcomes(passed=1, skipped=1)


STRANGER = """
import pytest

@pytest.fixture
def stress_minutes():
    return "mine"

@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.stress
@pytest.mark.soak
def test_mine(stress_minutes, pytestconfig):
    assert stress_minutes == "mine"
    assert pytestconfig.getoption("stress_minutes") == "5"
"""
CONFTEST = """
import sys

def pytest_addoption(parser):
    parser.addoption("--stress-minutes")

def pytest_unconfigure(config):
    assert config.pluginmanager.has_plugin("lockstep")
    print("loaded:", sorted({"torch", "rich", "typer", "lockstep.verdict"} & set(sys.modules)))
"""


def test_markers_and_options_of_another_project_stay_its_own(pytester: pytest.Pytester) -> None:
    """Also where there is no GPU, which the marker of ours would need; and nothing is loaded for it."""
    pytester.makepyfile(STRANGER)
    pytester.makeconftest(CONFTEST)
    result = pytester.runpytest_subprocess("--stress-minutes", "5")
    result.assert_outcomes(passed=1, warnings=4)  # its markers are not registered by us
    result.stdout.fnmatch_lines(["*loaded: []"])


def test_a_test_of_ours_needs_a_gpu(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys, types, pytest
        cuda = types.SimpleNamespace(is_available=lambda: False)
        sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)

        @pytest.mark.lockstep_gpu
        def test_ours():
            raise AssertionError("run")
        """
    )
    result = pytester.runpytest_subprocess("-rs", "--strict-markers")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no CUDA device"])


def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "def test_mine(pytestconfig): assert not pytestconfig.pluginmanager.has_plugin('lockstep')"
    )
    pytester.runpytest_subprocess("-p", "no:lockstep").assert_outcomes(passed=1)
