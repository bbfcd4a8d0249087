"""What the import contracts cannot see: no package of a stack is named where every stack is served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lockstep

PACKAGE = Path(lockstep.__file__).parent
STACKS = re.compile(r"swift|vllm|deepspeed|\btrl\b|\bgrpo\b", re.IGNORECASE)


@pytest.mark.parametrize("room", ["run", "verdict", "record", "inside", "experiments"])
def test_no_stack_is_named_in(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    named = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if STACKS.search(line)
    ]
    assert named == []


def test_one_place_for_the_variables() -> None:
    """Every `LOCKSTEP_*` variable that a process sets for another is in `env.py`."""
    named = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "env.py"
        for name in re.findall(r'"(LOCKSTEP_[A-Z_]*[A-Z])"', path.read_text())
    }
    assert named == set()
