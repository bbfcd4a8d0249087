"""Names process groups by what they are for.

torch's registry knows each group's ranks; vLLM's `GroupCoordinator`s and DeepSpeed's `groups` know why they
made it. Only modules that the process has already imported are asked: the probe imports none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Container
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


class GroupNames:
    """Knows this process's groups: torch's registry, and those outside of it once they are announced."""

    def __init__(self, side: str) -> None:
        self._side = side
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
        state = sys.modules.get("vllm.distributed.parallel_state")
        for ref in list(getattr(state, "_groups", {}).values()):
            coordinator = ref()
            if coordinator is None:
                continue
            kind = coordinator.unique_name.partition(":")[0]
            # It registers itself before it makes its groups, in another thread than this one.
            if getattr(coordinator, "device_group", None) is pg:
                return kind, coordinator.unique_name
            if getattr(coordinator, "cpu_group", None) is pg:
                return f"{kind}.cpu", coordinator.unique_name
        if pg is c10d._world.default_pg:
            return ("default" if state is not None and self._side == "rollout" else "world"), ""
        zero = sys.modules.get("deepspeed.utils.groups")
        if zero is not None and pg in _pgs_of(zero):
            return "zero", ""
        return (pg.group_desc or "group"), ""


def _pgs_of(module: Any) -> list[Any]:
    return [v for k, v in vars(module).items() if k.startswith("_") and k.isupper() and v is not None]
