"""A verdict and its ledgers to a named cause, where they prove one; `lockstep.causes` has the causes."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.record import Ledger

from .model import Kind, RankView, Verdict
from .names import Names
from .quiescence import PASSES, silent_for
from .sentence import place_text

UNKNOWN = "unknown"

_GATHERS = ("all_gather", "reduce_scatter")


def explain(
    verdict: Verdict, ledgers: Sequence[Ledger], now: float, names: Names, *, apart: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Name of the cause and what speaks for it, a sentence each; no name for a job in step or one that runs
    on. Where the processes' clocks are `apart`, nothing is concluded from a silence.
    """
    if verdict.kind is Kind.IN_STEP or (verdict.kind is Kind.INCOMPLETE and (verdict.running or not ledgers)):
        return "", ()
    if gone := _gone(verdict, ledgers, now, apart):
        return "rank-died", gone
    group = verdict.group.name.partition("#")[0] if verdict.group else ""
    if group == "weight-sync":
        return "weight-sync-interrupted", _absent(verdict, "never took part in the weight sync")
    if group in names.waves and verdict.kind is Kind.STUCK:
        return _wave(verdict, ledgers, names)
    if verdict.side == "trainer" and verdict.kind in (Kind.DIVERGED, Kind.STUCK):
        return _trainer(verdict, ledgers, names)
    if verdict.kind is Kind.STALLED and any(
        view.park in PASSES for view in verdict.ranks if view.state == "absent"
    ):
        return "slow-storage-or-rank", _absent(verdict, "sleeps or waits for a file")
    return UNKNOWN, ()


def _gone(verdict: Verdict, ledgers: Sequence[Ledger], now: float, apart: bool) -> tuple[str, ...]:
    """The process that the verdict's ranks wait for, or that an unfinished job lost first, if it is not
    there any more.
    """
    if verdict.kind is Kind.INCOMPLETE:
        return (f"{verdict.lost} was gone first",) if verdict.lost else ()
    if verdict.kind is Kind.STUCK:
        absent = [v for v in verdict.ranks if v.state == "absent" and (v.issued or 0) < (verdict.seq or 0)]
        waited_for = [view for view in absent if view.ended or (view.silent_s is not None and not apart)]
        return tuple(f"{v.process} {'has ended' if v.ended else 'is silent'}" for v in waited_for)
    if verdict.kind is Kind.STALLED and not apart:
        return tuple(f"{x.label} is silent" for x in ledgers if silent_for(x, now) is not None)
    return ()


def _absent(verdict: Verdict, what: str) -> tuple[str, ...]:
    return tuple(f"{view.process} {what}" for view in verdict.ranks if view.state == "absent")


def _wave(verdict: Verdict, ledgers: Sequence[Ledger], names: Names) -> tuple[str, tuple[str, ...]]:
    """An engine waits for one that sits idle. Whose worker answered is done; whose worker failed has not
    begun.
    """
    idle = [v for v in verdict.ranks if v.state == "absent" and names.idle and names.idle in (v.where or "")]
    workers = {
        x.process.rank: x
        for x in ledgers
        if x.process and (x.process.side, x.process.role) == ("rollout", "worker")
    }
    if not idle or any(view.rank not in workers for view in idle):
        return UNKNOWN, ()
    failed = [view for view in idle if _failed(workers[view.rank])]
    if failed:
        return "request-failed", tuple(
            f"{worker.label} failed in generation {worker.passed['generate begin']}, its engine got no work"
            for worker in (workers[view.rank] for view in failed)
        )
    return "offline-wave-race", tuple(
        f"{worker.label} has answered generation {worker.passed.get('generate end', 0)}, its engine is idle"
        for worker in (workers[view.rank] for view in idle)
    )


def _failed(worker: Ledger) -> bool:
    return bool(worker.boundaries) and worker.boundaries[-1].name == "generate failed"


def _trainer(verdict: Verdict, ledgers: Sequence[Ledger], names: Names) -> tuple[str, tuple[str, ...]]:
    if blocked := _blocked(verdict, ledgers):
        return "blocked-elsewhere", blocked
    verb = "issued" if verdict.seq is not None else "passed"
    issued = [f"{view.process} {verb} {view.operation}" for view in verdict.ranks if view.operation]
    layers = {view.process: layer for view in verdict.ranks if (layer := _layer(view, ledgers, names))}
    gathers = any((view.operation or "").startswith(_GATHERS) for view in verdict.ranks)
    # Later on any difference may have brought them apart.
    fresh = all((view.issued or 0) <= (verdict.seq or 0) + 1 for view in verdict.ranks)
    if gathers and fresh and len(layers) == len(verdict.ranks) and len(set(layers.values())) > 1:
        inside = [f"{process} gathers parameters for {layer}" for process, layer in layers.items()]
        return "mixed-batch", (*issued, *inside)
    return "rank-dependent-control-flow", tuple(issued) or _absent(verdict, "issued fewer collectives")


def _blocked(verdict: Verdict, ledgers: Sequence[Ledger]) -> tuple[str, ...]:
    """The absent ranks that wait for something that is no rank, if nothing shows that they went another way.

    It would be shown by a boundary that they passed and their peers did not, by one at which counts differ,
    or by what they issued instead.
    """
    absent = [view for view in verdict.ranks if view.state == "absent"]
    waiting = [view for view in verdict.ranks if view.state == "waiting"]
    blocked = [view for view in absent if view.blocked and not view.ended and not view.waits_elsewhere]
    if verdict.kind is not Kind.STUCK or verdict.boundary != verdict.agreed or not waiting:
        return ()
    told = {view.rank for view in blocked}
    if not blocked or any(view.rank not in told and not view.waits_elsewhere for view in absent):
        return ()
    passed = {x.label: x.passed for x in ledgers}
    furthest: dict[str, int] = {}
    for view in blocked:
        for name, n in passed[view.process].items():
            furthest[name] = max(n, furthest.get(name, 0))
    ahead = any(n > passed[peer.process].get(name, 0) for name, n in furthest.items() for peer in waiting)
    if ahead or len({view.operation for view in verdict.ranks if view.operation}) > 1:
        return ()
    return tuple(
        f"{view.process} waits for a {view.blocked}" + (f" in {place_text(view.where)}" if view.where else "")
        for view in blocked
    )


def _layer(view: RankView, ledgers: Sequence[Ledger], names: Names) -> str:
    """The line of the model's code that the rank's main thread is in, empty if it is in none."""
    pulse = next((x.pulse for x in ledgers if x.label == view.process), None)
    frames = [frame.partition(" ")[0] for frame in (pulse.at if pulse else [])]
    return next((frame for frame in frames if names.model and names.model in frame), "")
