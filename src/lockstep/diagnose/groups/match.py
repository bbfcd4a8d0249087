"""From the numbers that a watchdog prints to the groups that have them: all readings that fit, the best
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from lockstep.diagnose.events import GroupLabel
from lockstep.diagnose.groups import trainer
from lockstep.diagnose.groups.vllm import RELEASES, Kind, Layout, MadeGroup, Release, find

Side = Literal["rollout", "trainer", "unknown"]

_NAMES: dict[Kind, str] = {
    "default": "default",
    "world": "world",
    "tp": "tensor parallel",
    "dcp": "decode-context parallel",
    "pcp": "prefill-context parallel",
    "pp": "pipeline parallel",
    "dp": "data parallel",
    "ep": "expert parallel",
}
_MAX_WORLD = 64
_MAX_READINGS = 8


@dataclass(frozen=True)
class Seen:
    """What the log says about a group: its numbers, and for each operation its name, size and sequence
    number.

    `members` maps rank in the group to global rank (None where a line has no global rank). `world` is the
    number of ranks that the log proves this half of the job to have, at least.
    """

    label: GroupLabel | None
    operations: tuple[tuple[str, int | None, int], ...]
    members: tuple[tuple[int, int | None], ...]
    world: int = 1
    vllm: str | None = None  # release, if the log names it
    layout: Layout | None = None  # sizes, if the log names them


@dataclass(frozen=True)
class Reading:
    """One way to understand a group. `why` says what speaks for it, `but` what speaks against it."""

    side: Side
    component: str
    releases: tuple[str, ...]
    group: str  # rollout.dp, trainer.zero, ...
    kind: str
    meaning: str
    ranks: tuple[int, ...] | None  # None where the size of the group is not known
    layout: Layout | None
    score: int
    why: tuple[str, ...]
    but: tuple[str, ...] = ()


def readings(seen: Seen) -> tuple[Reading, ...]:
    """All readings that fit the numbers, the likeliest first; empty if no known release makes such a
    group.
    """
    found = [*_described(seen), *_trainers(seen), *_rollouts(seen)]
    found.sort(key=lambda reading: (-reading.score, reading.layout.world if reading.layout else 0))
    merged: dict[tuple[object, ...], Reading] = {}
    for reading in found:
        layout = (
            None if reading.kind in ("default", "world") else reading.layout
        )  # the same under all layouts
        key = (reading.side, reading.group, reading.ranks, layout, reading.score)
        if key in merged:
            more = tuple(name for name in reading.releases if name not in merged[key].releases)
            merged[key] = replace(merged[key], releases=merged[key].releases + more)
        else:
            merged[key] = reading
    return tuple(merged.values())[:_MAX_READINGS]


def _described(seen: Seen) -> Iterable[Reading]:
    desc = seen.label.desc if seen.label else None
    if desc and desc != "default_pg":
        why = (f"whoever made the group described it as '{desc}'",)
        yield Reading("unknown", "named by its maker", (), desc, "named", desc, None, None, 3, why)


def _trainers(seen: Seen) -> Iterable[Reading]:
    label = seen.label
    if label is None:
        return
    for made in trainer.GROUPS:
        numbers = {str(made.guid)}
        if label.guid is not None and label.guid not in numbers:
            continue
        if label.local is not None and label.local != made.guid:
            continue
        if label.number is not None and label.number != made.guid:
            continue
        operations = {operation for operation, _, _ in seen.operations}
        why = [f"{label}: the number of {made.name}"]
        but = []
        score = 2
        if operations and operations <= made.operations:
            score += 1
        elif operations:
            but.append(f"{', '.join(sorted(operations - made.operations))} is not known to run there")
            score -= 2
        if made is trainer.ZERO and any("SCATTER" in op or "GATHER" in op for op in operations):
            score += 1
            why.append("ZeRO gathers parameters and scatters gradients on it")
        size = max([seen.world, *(rank + 1 for rank, _ in seen.members)])
        yield Reading(
            "trainer",
            "DeepSpeed with accelerate" if made is trainer.ZERO else "torch",
            (),
            made.name,
            made.name.split(".")[1],
            made.purpose,
            tuple(range(size)) if seen.world > 1 else None,
            None,
            score,
            tuple(why),
            tuple(but),
        )


def _rollouts(seen: Seen) -> Iterable[Reading]:
    label = seen.label
    if label is None:
        return
    guid = label.guid if label.guid is not None else str(label.number)
    if not guid.isdecimal() or len(guid) > 6:
        return
    for release in RELEASES:
        for layout in [seen.layout] if seen.layout else _layouts():
            made = find(release, layout, int(guid))
            if made is not None and _fits(made, seen, label):
                yield _rollout(release, layout, made, seen, label)


def _fits(made: MadeGroup, seen: Seen, label: GroupLabel) -> bool:
    """A group of one rank cannot time out, a gloo group has no NCCL watchdog, and the members must be where
    they are.
    """
    if len(made.ranks) < 2 or not made.device or (label.local is not None and label.local != made.local):
        return False
    for rank, world_rank in seen.members:
        if rank >= len(made.ranks) or (world_rank is not None and made.ranks[rank] != world_rank):
            return False
    return True


def _rollout(release: Release, layout: Layout, made: MadeGroup, seen: Seen, label: GroupLabel) -> Reading:
    why = [
        f"{label}: with {layout}, vLLM {release.name} gives these numbers to its {_NAMES[made.kind]} group"
    ]
    but: list[str] = []
    score = 1
    if made.kind == "dp" and release.sync_rows and seen.operations:
        size = release.sync_rows * len(made.ranks)
        if all(op == "ALLREDUCE" and numel == size for op, numel, _ in seen.operations):
            score += 4
            each = "one element" if release.sync_rows == 1 else f"{release.sync_rows} elements"
            why.append(
                f"every engine step all-reduces {each} per rank on this group: "
                f"{size} for {len(made.ranks)} ranks"
            )
        else:
            but.append(f"the all-reduce of every engine step has {size} elements in this release")
    elif made.kind == "dp":
        but.append(
            "this release agrees on the batch by gloo: on NCCL only expert layers would use this group"
        )
    elif made.kind in ("default", "world"):
        but.append("vLLM hardly uses this group on NCCL")
        score -= 1
    elif made.kind in ("tp", "dcp", "pcp"):
        but.append(
            "vLLM's own NCCL communicator, which no watchdog sees, carries most of this group's traffic"
        )
    if seen.vllm == release.name:
        score += 3
        why.append(f"the log names vLLM {release.name}")
    elif seen.vllm is not None:
        score -= 1
        but.append(f"the log names vLLM {seen.vllm}")
    if seen.layout is not None:
        score += 1
        why.append("the sizes are those that the log names")
    if seen.world > layout.world:
        but.append(f"the log shows {seen.world} ranks, more than {layout.world}: they may be the trainer's")
        score -= 1
    return Reading(
        "rollout",
        "vLLM",
        (release.name,),
        f"rollout.{made.kind}",
        made.kind,
        _NAMES[made.kind],
        made.ranks,
        layout,
        score,
        tuple(why),
        tuple(but),
    )


@cache
def _layouts() -> tuple[Layout, ...]:
    sizes = (1, 2, 4, 8, 16)
    found = [
        Layout(tp, pp, dp)
        for tp in sizes
        for pp in (1, 2, 4)
        for dp in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)
        if 1 < tp * pp * dp <= _MAX_WORLD
    ]
    return tuple(sorted(found, key=lambda layout: layout.world))
