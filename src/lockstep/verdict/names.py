"""What a stack calls the things by which a cause is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Everything is empty for a stack that has no such thing: then no cause is told by it."""

    waves: tuple[str, ...] = ()
    """Groups in which the ranks of a service step together, wave after wave."""
    idle: str = ""
    """Function in which the main thread of an idle engine waits for work."""
    model: str = ""
    """What stands in the path of a file with a model's layers."""
