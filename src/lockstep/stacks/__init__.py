"""The training stacks that Lockstep knows. Each stack is one folder, with a `STACK` in its `description`."""

from __future__ import annotations

TYPE_CHECKING = False
"""Spares the import of `typing`: this package is imported with every `import torch`."""
if TYPE_CHECKING:
    from lockstep.stacks.base import Stack

DEFAULT = "swift"


def names() -> list[str]:
    """Return the names of all stacks, sorted."""
    from pathlib import Path

    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/description.py"))


def get(name: str = DEFAULT) -> Stack:
    """Return the stack of that name. Raises KeyError for a name that is not in `names()`."""
    from importlib import import_module

    if name not in names():
        raise KeyError(name)
    stack: Stack = import_module(f"lockstep.stacks.{name}.description").STACK
    return stack
