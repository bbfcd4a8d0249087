from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model() -> Path:
    """The tiny checkpoint, where `lockstep run` keeps it too."""
    from lockstep.fixtures.checkpoint import ensure_checkpoint
    from lockstep.stacks.swift.pins import complete_cpu_build

    complete_cpu_build()
    return ensure_checkpoint(Path(__file__).parents[2] / ".lockstep" / "models")
