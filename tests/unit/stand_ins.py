"""What a session looks for before it runs anything, taken to be in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.experiments.stress import session
from lockstep.fixtures.shapes import write_shapes
from lockstep.stacks.swift import description


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Makes `folder` the working folder, with the data set, and takes the stack and the model for there."""
    write_shapes(folder / "datasets" / "shapes")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(description, "check_stack", lambda device, **_: {})
    monkeypatch.setattr(description, "complete_cpu_build", lambda: None)
    monkeypatch.setattr(description, "ensure_checkpoint", lambda folder, *_: folder / "tiny")
    monkeypatch.setattr(session, "LEAST_FREE_GIB", 0.0)
    return folder
