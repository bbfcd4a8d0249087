from __future__ import annotations

from pathlib import Path

import pytest

JOB_S = 900
"""Time limit of a test here: it may run real jobs, some of them several times."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(JOB_S))


@pytest.fixture(scope="session")
def model() -> Path:
    """The tiny checkpoint, where `lockstep run` keeps it too."""
    from lockstep.fixtures.checkpoint import ensure_checkpoint
    from lockstep.stacks.swift.pins import complete_cpu_build

    complete_cpu_build()
    return ensure_checkpoint(Path(__file__).parents[2] / ".lockstep" / "models")
