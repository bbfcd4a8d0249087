"""pytest plugin: the markers of this suite, and a fixture for anyone's tests of a job that writes ledgers.

Loaded by pytest in every environment that has Lockstep, so it imports nothing of the stack and little else,
and does nothing to tests without its markers. All names but the fixtures' have the prefix `lockstep`, so that
markers and options of other projects stay theirs; `-p no:lockstep` goes without it.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lockstep.verdict import Verdict

OPTION = "--lockstep-stress-minutes"
MARKERS = {
    "lockstep_gpu": "needs CUDA devices; skipped without them",
    "lockstep_slow": "takes longer than a minute",
    "lockstep_stress": "runs the whole job, or many rounds of it",
    "lockstep_soak": "runs for the time that --lockstep-stress-minutes gives; skipped without it",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lockstep").addoption(
        OPTION,
        type=_minutes,
        default=0.0,
        metavar="N",
        dest="lockstep_stress_minutes",
        help="run the tests marked lockstep_soak, each for N minutes",
    )


def _minutes(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (minutes := float(text)) < math.inf:
            return minutes
    raise ArgumentTypeError(f"{text!r}: expected a finite number of minutes, at least 0")


def pytest_configure(config: pytest.Config) -> None:
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("lockstep_stress_minutes") <= 0:
        for item in items:
            if item.get_closest_marker("lockstep_soak"):
                item.add_marker(pytest.mark.skip(reason=f"a soak: needs {OPTION} N"))
    gpu = [item for item in items if item.get_closest_marker("lockstep_gpu")]
    if gpu and not _has_cuda():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def stress_minutes(pytestconfig: pytest.Config) -> float:
    """What `--lockstep-stress-minutes` gives, in minutes; 0 without it."""
    minutes: float = pytestconfig.getoption("lockstep_stress_minutes")
    return minutes


@pytest.fixture
def assert_in_step() -> Callable[[Path], Verdict]:
    """Call it with a run's folder: fails with the verdict's sentence unless all ranks issued the same
    collectives.
    """

    def check(folder: Path) -> Verdict:
        from lockstep.record import read_directory
        from lockstep.stacks.judging import judge
        from lockstep.verdict import Kind

        verdict = judge(read_directory(folder))
        if verdict.kind is not Kind.IN_STEP:
            pytest.fail(f"{verdict.kind.value}: {verdict.sentence}", pytrace=False)
        return verdict

    return check


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
