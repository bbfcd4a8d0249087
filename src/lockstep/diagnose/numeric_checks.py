"""Small sums over the numbers of a log. Each returns a statement with the line that it rests on, or
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockstep.diagnose.events import Mark, Timeout
from lockstep.diagnose.groups_seen import Group
from lockstep.diagnose.model import Evidence
from lockstep.diagnose.timeline import Picture

if TYPE_CHECKING:
    from lockstep.diagnose.causes.case import Case

_GATHER = ("_ALLGATHER_BASE", "ALLGATHER")
_LATE = 10
_SCATTER = ("_REDUCE_SCATTER_BASE", "REDUCE_SCATTER")


def wave_position(case: Case) -> tuple[int, Evidence] | None:
    """Which step of a wave (from 1, modulo its steps) the waiting all-reduce belongs to.

    Each engine step makes one all-reduce and a wave lasts a multiple of `wave_steps` steps; what start-up
    makes comes off.
    """
    release, group = case.release, case.group
    if group is None or release is None or release.start_up is None or not case.step_sync:
        return None
    seq = group.seq
    if seq <= release.start_up:
        return None
    step = (seq - release.start_up - 1) % release.wave_steps + 1
    name = "the first step of a new wave" if step == 1 else f"step {step} of {release.wave_steps} in a wave"
    text = (
        f"number {seq} is {name}: ({seq} - {release.start_up} at start-up) % {release.wave_steps} = "
        f"{step % release.wave_steps} ({release.start_up} holds for default CUDA graph settings)"
    )
    if step == 1:
        text += f"; by chance that is so once in {release.wave_steps}"
    return step, Evidence.of(text, group.timeouts[0])


def uneven_progress(picture: Picture) -> list[Evidence]:
    """Progress bars over the same total, one finished and one hardly begun: two ranks with equal shares of
    the requests.
    """
    bars: list[Mark] = []
    first = picture.first_timeout
    if first is None:
        return []
    last: dict[tuple[str, int | None], list[Mark]] = {}
    for mark in picture.of("progress"):
        if mark.file != first.file or mark.line >= first.line or mark.detail:
            continue
        runs = last.setdefault((mark.file, mark.total), [])
        if runs and mark.number and (runs[-1].number or 0) <= mark.number:
            runs[-1] = mark
        else:
            runs.append(mark)
    for runs in last.values():
        bars = runs[-2:]
        low, high = sorted(bars, key=lambda mark: mark.number or 0) if len(bars) == 2 else (None, None)
        if low and high and high.total and high.number == high.total and (low.number or 0) * 2 < high.total:
            return [
                Evidence.of(f"one rank has answered all of its {high.total} requests", high),
                Evidence.of(f"another has answered {low.number} of {low.total}", low),
            ]
    return []


def group_size(group: Group) -> tuple[int, Evidence] | None:
    """The size of a group from one rank's element counts: an all-gather's output holds every rank's input."""
    for timeout in group.timeouts:
        pair = (timeout.numel_in or 0, timeout.numel_out or 0)
        small, large = pair if timeout.op in _GATHER else pair[::-1] if timeout.op in _SCATTER else (0, 0)
        if small > 0 and large > small and large % small == 0 and large // small <= 65_536:
            size = large // small
            return size, Evidence.of(
                f"{timeout.op} of {pair[0]} to {pair[1]} elements: the group has {size} ranks", timeout
            )
    return None


def differing_sizes(group: Group) -> list[Evidence]:
    """Sizes that differ between ranks at one number."""
    if not group.one:
        return []
    at = group.works
    sizes = {(timeout.op, timeout.numel_in) for timeout in at}
    if len(sizes) < 2:
        return []
    return [
        Evidence.of(f"number {t.seq} on rank {_rank(t)}: {t.op} of {t.numel_in} elements", t)
        for t in _one_per_size(at)
    ]


def _rank(timeout: Timeout) -> int | None:
    return timeout.rank if timeout.origin.rank is None else timeout.origin.rank


def standing_watchdog(group: Group) -> list[Evidence]:
    """A work that ran ten times its timeout: the watchdog looked at it so late because it stood still
    itself.
    """
    late = next((t for t in group.timeouts if t.ran_ms and t.ran_ms >= _LATE * max(t.timeout_ms, 1)), None)
    if late is None:
        return []
    text = (
        f"the work ran {late.ran_ms} ms with a timeout of {late.timeout_ms} ms: the watchdog itself stood "
        "still in between (a process that was stopped, the GIL held, or a CUDA call that did not return)"
    )
    return [Evidence.of(text, late)]


def _one_per_size(timeouts: list[Timeout]) -> Iterable[Timeout]:
    seen: set[tuple[str, int | None]] = set()
    for timeout in timeouts:
        if (key := (timeout.op, timeout.numel_in)) not in seen:
            seen.add(key)
            yield timeout


def ranges(numbers: Iterable[int]) -> str:
    """1, 2, 3, 7 -> 1-3, 7"""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
