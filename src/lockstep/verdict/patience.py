"""Whether a hang may yet end by itself, in a way of which nothing is seen."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.record import Ledger

from .quiescence import PASSES, Window, unseen
from .wait_graph import Hang


def may_move(hang: Hang, ledgers: Sequence[Ledger], window: Window, settle_s: float) -> bool:
    """Whether a process gives no sign of life; or an absent rank, or a worker that may give it work, is in a
    sleep that ends by itself; or such a worker still prepares its requests.
    """
    if unseen(ledgers, window, settle_s):
        return True
    feeders = [
        x for x in ledgers if hang.group.side != "trainer" and x.process and x.process.role == "worker"
    ]
    if any(map(_prepares, feeders)):
        return True
    suspects = [hang.group.members[rank].ledger for rank in hang.absent] + feeders
    pulses = [x.pulse_at(window.end) for x in suspects if x.ended is None]
    return any(pulse is not None and pulse.w is None and pulse.park in PASSES for pulse in pulses)


def _prepares(worker: Ledger) -> bool:
    """Whether a worker has begun a generation and not yet added all of its requests to its engine."""
    last = worker.boundaries[-1] if worker.boundaries else None
    waiting = worker.pulse is not None and worker.pulse.w is not None
    return worker.ended is None and last is not None and last.name == "generate begin" and not waiting
