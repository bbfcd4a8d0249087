"""Names process groups by what they are for.

torch's registry knows each group's ranks; the packages of a stack know why they made it, and the stack knows
how to ask them (`Purpose`). Only modules that the process has already imported are asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from lockstep.inside.flight_recorder import Pg


@dataclass(frozen=True)
class Group:
    """One process group as the ledger declares it; `id` is what all its ranks call it, where they have such a
    name.
    """

    name: str
    lib: str
    backend: str
    ranks: tuple[int, ...]
    rank: int
    id: str = ""


Purpose = Callable[[str, Any, Any], tuple[str, str] | None]
"""From the side, a process group and torch's `distributed_c10d`: what the group is for, and what its maker
calls it; None where the stack does not know it."""


def no_purpose(side: str, pg: Any, c10d: Any) -> tuple[str, str] | None:
    """Know no group."""
    return None


class GroupNames:
    """Knows this process's groups: torch's registry, and those outside of it once they are announced."""

    def __init__(self, side: str, purpose: Purpose = no_purpose) -> None:
        self._side, self._of_stack = side, purpose
        self._announced: dict[int, Group] = {}
        self._unnamed: list[Pg] = []

    def announce(self, unnamed: int, group: Group) -> None:
        """Says what the process's `unnamed`-th group outside torch's registry is, counted from 0 in order of
        making.
        """
        self._announced[unnamed] = group

    def registered(self, known: Container[str]) -> dict[str, Group]:
        """torch's own name of each group in its registry, in order of making -> the group; without those
        `known`.
        """
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None:
            return {}
        world = c10d._world
        return {
            name: self._describe(pg, name, c10d)
            for pg, name in list(world.pg_names.items())
            if name not in known
        }

    def begun(self, name: str) -> int:
        """How many collectives of NCCL's group with torch's name `name` were called; 0 where torch does not
        tell, and for other backends, which connect when a group is made.

        torch counts a call before it makes the communicator, and records it after (torch 2.8,
        `ProcessGroupNCCL::collective`). Asks for a number only: no lock, no device.
        """
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None:
            return 0
        for pg, known in list(c10d._world.pg_names.items()):
            if known == name and "nccl" in str(c10d._world.pg_map[pg][0]):
                try:
                    return int(pg._get_sequence_number_for_group())
                except RuntimeError:
                    return 0
        return 0

    def outside(self, pg: Pg) -> Group | None:
        """The group with the recorder's number `pg` and no name; None when nobody announced it."""
        if pg not in self._unnamed:
            self._unnamed = sorted([*self._unnamed, pg])
        return self._announced.get(self._unnamed.index(pg))

    def _describe(self, pg: Any, name: str, c10d: Any) -> Group:
        places = c10d._world.pg_group_ranks[pg]
        purpose, lib = self._purpose(pg, c10d)
        backend = str(c10d._world.pg_map[pg][0])
        ranks = tuple(sorted(places, key=places.__getitem__))
        # torch's name is also the prefix under which the ranks of a group find each other in the store
        # (`_new_process_group_helper`, torch 2.8): where it differs they have no group.
        return Group(f"{self._side}.{purpose}", lib or f"pg {name}", backend, ranks, pg.rank(), name)

    def _purpose(self, pg: Any, c10d: Any) -> tuple[str, str]:
        if known := self._of_stack(self._side, pg, c10d):
            return known
        return ("world" if pg is c10d._world.default_pg else pg.group_desc or "group"), ""
