"""How a check says what it expected."""

from __future__ import annotations


def expect(holds: bool, what: str) -> None:
    """Raise AssertionError with `what` unless it holds, also where Python runs without assertions."""
    if not holds:
        raise AssertionError(f"expected {what}")
