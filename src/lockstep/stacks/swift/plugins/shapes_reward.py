"""The job's reward function: does the answer contain the solution? Loaded with `--external_plugins`, named
`shapes`.
"""

from __future__ import annotations

from typing import Any

from lockstep.inside.hooks import find
from lockstep.stacks.swift.compat import place

ORM: Any = find(f"{place('rewards')}:ORM")


class Shapes(ORM):  # type: ignore[misc]  # an untyped base
    """1.0 for the exact answer, 0.5 when it is in there, less 0.01 a word, so that equal groups are rare."""

    def __call__(self, completions: list[str], solution: list[str], **kwargs: Any) -> list[float]:
        return [
            self._score(c.strip().lower(), s.strip().lower())
            for c, s in zip(completions, solution, strict=True)
        ]

    @staticmethod
    def _score(answer: str, solution: str) -> float:
        right = 1.0 if answer == solution else 0.5 if solution in answer else 0.0
        return right - 0.01 * len(answer.split())


find(f"{place('rewards')}:orms")["shapes"] = Shapes
