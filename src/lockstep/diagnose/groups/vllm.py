"""The process groups of a vLLM worker, as a function of release and parallel sizes.

Read from vllm/distributed/parallel_state.py (init_distributed_environment, initialize_model_parallel) of each
release's wheel; that of 0.11.0 is compared with the real library by tests/stack/test_group_model.py.

torch names a group by a counter that every `new_group` raises, on every rank, member or not: the GUID. vLLM
makes a device group and a gloo group for each list of ranks, in this order. A rank is in exactly one list of
each kind, so the number that ProcessGroupNCCL prints as PG ID, which counts the NCCL groups of the process,
only tells the kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

Kind = Literal["default", "world", "tp", "dcp", "pcp", "pp", "dp", "ep"]
Axis = Literal["dp", "pp", "pcp", "tp"]

_AXES: tuple[Axis, ...] = ("dp", "pp", "pcp", "tp")  # slowest first: the layout order of ranks

# Per kind, the order of axes in which its ranks are listed, and the axes that one list spans.
_LISTED: dict[Kind, tuple[tuple[Axis, ...], tuple[Axis, ...]]] = {
    "world": (_AXES, _AXES),
    "tp": (_AXES, ("tp",)),
    "pcp": (("dp", "pp", "tp", "pcp"), ("pcp",)),
    "pp": (("dp", "tp", "pcp", "pp"), ("pp",)),
    "dp": (("tp", "pp", "pcp", "dp"), ("dp",)),
    "ep": (("pp", "dp", "pcp", "tp"), ("dp", "pcp", "tp")),
}


@dataclass(frozen=True)
class Release:
    """`sync_rows`: how many integers per DP rank an engine step all-reduces on the DP group's device, 0 if it
    does so on gloo.

    `wave_steps`: after how many steps the engines agree on whether to go on. `start_up`: how many of these
    all-reduces start-up makes with default settings, None where it was not worked out. `torch`: the release's
    own pin.
    """

    name: str
    kinds: tuple[Kind, ...]
    sync_rows: int
    wave_steps: int
    start_up: int | None
    torch: str


RELEASES: tuple[Release, ...] = (
    Release("0.8.5", ("world", "tp", "pp", "dp"), 0, 24, None, "2.6"),
    Release("0.9.2", ("world", "tp", "pp", "dp", "ep"), 0, 32, None, "2.7"),
    Release("0.10.2", ("world", "tp", "dcp", "pp", "dp", "ep"), 0, 32, None, "2.8"),
    # 206: 1 memory profile, 67 piecewise and 35 full graphs twice each, 1 sampler warm-up; by reading the
    # code, not measured.
    Release("0.11.0", ("world", "tp", "dcp", "pp", "dp", "ep"), 1, 32, 206, "2.8"),
    Release("0.12.0", ("world", "tp", "dcp", "pcp", "pp", "dp", "ep"), 4, 32, None, "2.9"),
    Release("0.13.0", ("world", "tp", "dcp", "pcp", "pp", "dp", "ep"), 5, 32, None, "2.9"),
)


@dataclass(frozen=True)
class Layout:
    """Parallel sizes of a rollout: tensor, decode-context (a part of tensor), prefill-context, pipeline,
    data.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    pcp: int = 1

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp * self.pcp

    def size(self, kind: Kind) -> int:
        """Ranks in one group of this kind."""
        if kind == "default":
            return self.world
        if kind == "dcp":
            return self.dcp
        return prod(getattr(self, axis) for axis in _LISTED[kind][1])

    def lists(self, kind: Kind) -> list[tuple[int, ...]]:
        """The rank lists of a kind, in the order in which its groups are made."""
        size = self.size(kind)
        order = _AXES if kind in ("dcp", "default") else _LISTED[kind][0]
        stride, strides = 1, {}
        for axis in reversed(_AXES):
            strides[axis] = stride
            stride *= getattr(self, axis)
        ranks = [0]
        for axis in order:
            ranks = [rank + i * strides[axis] for rank in ranks for i in range(getattr(self, axis))]
        return [tuple(ranks[at : at + size]) for at in range(0, len(ranks), size)]

    def __str__(self) -> str:
        sizes = [f"{name.upper()} {size}" for name in ("tp", "pp", "dp") if (size := getattr(self, name)) > 1]
        sizes += [f"{name.upper()} {size}" for name in ("dcp", "pcp") if (size := getattr(self, name)) > 1]
        return ", ".join(sizes) or "one rank"


@dataclass(frozen=True)
class MadeGroup:
    """`local` is its number among the device groups of each of its members; None for a gloo group."""

    kind: Kind
    guid: int
    local: int | None
    ranks: tuple[int, ...]
    device: bool


def made_groups(release: Release, layout: Layout) -> list[MadeGroup]:
    """All groups of a job, in the order in which every worker makes them."""
    made = [MadeGroup("default", 0, 0, tuple(range(layout.world)), True)]
    for local, kind in enumerate(release.kinds, 1):
        for ranks in layout.lists(kind):
            made.append(MadeGroup(kind, len(made), local, ranks, True))
            made.append(MadeGroup(kind, len(made), None, ranks, False))
    return made


def find(release: Release, layout: Layout, guid: int) -> MadeGroup | None:
    """The group of that GUID, without listing the others; None if the layout makes fewer groups."""
    if guid == 0:
        return MadeGroup("default", 0, 0, tuple(range(layout.world)), True)
    first = 1
    for local, kind in enumerate(release.kinds, 1):
        count = 2 * (layout.world // layout.size(kind))
        if guid < first + count:
            index, gloo = divmod(guid - first, 2)
            return MadeGroup(kind, guid, None if gloo else local, layout.lists(kind)[index], not gloo)
        first += count
    return None
