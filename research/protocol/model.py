"""States and transitions: the server, and for each rank a worker, its engine core and the two queues between
them.

As in vLLM 0.11.0 (`v1/engine/core.py` `DPEngineCoreProc.run_busy_loop`, `v1/engine/core_client.py`
`SyncMPClient`, `v1/engine/llm_engine.py` `LLMEngine`) and ms-swift 3.10.3 (`llm/infer/rollout.py`
`SwiftRolloutDeploy.infer`, `llm_worker`; `llm/infer/infer_engine/vllm_engine.py` `VllmEngine.infer`).
docs/protocol.md says what is left out, and why nothing is lost by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple


@dataclass(frozen=True)
class Protocol:
    """Which rules the ranks follow. The last three leave a part of open wave out, to show that it is
    needed."""

    name: str
    lockstep: bool = True
    """Every step of an engine core is a collective of all ranks, and so is the question whether the wave is
    over."""
    open_wave: bool = False
    """A worker announces that it begins to add requests, and that it has ended."""
    announces_when_empty: bool = True
    """A worker without a request announces too."""
    drains: bool = True
    """A worker whose call failed waits for the end of the wave before it answers."""
    watches_worker: bool = True
    """An engine core takes a dead worker's announcement for ended."""


SHIPPED = Protocol("as shipped")
INDEPENDENT = Protocol("independent ranks", lockstep=False)
OPEN_WAVE = Protocol("open wave", open_wave=True)


@dataclass(frozen=True)
class Case:
    """What the ranks have to do, and what may befall them."""

    requests: tuple[int, ...]
    """Requests of each rank in each round."""
    rounds: int = 2
    period: int = 2
    """Steps between two questions whether the wave is over; vLLM has 32."""
    fails: frozenset[int] = frozenset()
    """Ranks whose worker's call may raise, before any request or after some."""
    dies: frozenset[int] = frozenset()
    """Ranks whose worker may die, at any moment."""


class Rank(NamedTuple):
    # The worker. phase: told (a command to generate lies in its pipe), announcing, adding, waiting, answered,
    # sync (a command to sync the weights lies in its pipe), syncing, dead.
    phase: str = "told"
    left: int = 0  # requests still to be added
    open: int = 0  # requests added and not seen finished
    running: bool = (
        False  # SyncMPClient.engines_running: set when a request is added, cleared when a wave's end is read
    )
    # Its engine core. place: loop (about to read its queue, or blocked in it), step (in the collective of a
    # step), weights (in weight sync).
    place: str = "loop"
    active: int = 0  # unfinished requests
    on: bool = False  # DPEngineCoreProc.engines_running
    adding: bool = False  # open wave: its worker has announced that it begins, and not that it has ended
    # The queues: to the core r(equest) b(egin) e(nd) w(eights); to the worker d(one), W(ave ended).
    inbox: str = ""
    outbox: str = ""


class State(NamedTuple):
    round: int  # from 1; 0 when the server has answered the last one
    steps: (
        int  # of the current wave, modulo the period; the same on all ranks, since every step is a collective
    )
    ranks: tuple[Rank, ...]


class Move(NamedTuple):
    what: str
    rank: int  # -1: all of them, or the server
    detail: int = 0


def start(case: Case) -> State:
    return State(1, 0, tuple(Rank() for _ in case.requests))


def finished(state: State) -> bool:
    """Every round has been answered; where a worker has died, all that live have answered and no core waits
    for another."""
    if any(rank.phase == "dead" for rank in state.ranks):
        alive = [rank for rank in state.ranks if rank.phase != "dead"]
        idle = all(rank.place == "loop" and not rank.on and not rank.active for rank in state.ranks)
        return idle and all(rank.phase in ("answered", "syncing") for rank in alive)
    return state.round == 0


def moves(protocol: Protocol, case: Case, state: State) -> Iterator[tuple[Move, State]]:
    """Everything that can happen next."""
    for r, rank in enumerate(state.ranks):
        for move, after in _worker(protocol, case, r, rank):
            yield move, _with(state, r, after)
        if turn := _core(r, rank):
            yield turn[0], _with(state, r, turn[1])
    yield from _step(protocol, case, state)
    yield from _server(case, state)


def _with(state: State, r: int, rank: Rank) -> State:
    return state._replace(ranks=(*state.ranks[:r], rank, *state.ranks[r + 1 :]))


def _worker(protocol: Protocol, case: Case, r: int, rank: Rank) -> Iterator[tuple[Move, Rank]]:
    phase = rank.phase
    if phase == "dead":
        return
    if r in case.dies:
        yield Move("dies", r), rank._replace(phase="dead", left=0, open=0, running=False, outbox="")
    if phase == "told":
        if protocol.open_wave and (case.requests[r] or protocol.announces_when_empty):
            # It waits for the answer to its announcement, which the core gives when it reads it.
            begun = rank._replace(
                phase="announcing", left=case.requests[r], running=True, inbox=rank.inbox + "b"
            )
            yield Move("announces", r), begun
        else:
            yield Move("begins", r), rank._replace(phase="adding", left=case.requests[r])
    elif phase == "announcing":
        if "b" not in rank.inbox:
            yield Move("begins", r), rank._replace(phase="adding")
    elif phase == "adding":
        end = "e" if protocol.open_wave and (case.requests[r] or protocol.announces_when_empty) else ""
        if rank.left:
            more = rank._replace(left=rank.left - 1, open=rank.open + 1, inbox=rank.inbox + "r")
            # Only a data-parallel client keeps track of waves.
            yield Move("adds", r), more._replace(running=rank.running or protocol.lockstep)
        else:
            yield Move("waits", r), rank._replace(phase="waiting", inbox=rank.inbox + end)
        if r in case.fails:
            drains = protocol.open_wave and protocol.drains
            failed = rank._replace(phase="waiting" if drains else "answered", left=0, inbox=rank.inbox + end)
            yield Move("fails", r), failed
    elif phase == "waiting":
        if rank.outbox or not (rank.open or rank.running):
            yield Move("reads", r), _read(rank)
    elif phase == "sync":
        yield Move("passes weights", r), rank._replace(phase="syncing", inbox=rank.inbox + "w")


def _read(rank: Rank) -> Rank:
    """`while engine.has_unfinished_requests(): engine.step()`, as far as there is something to read."""
    open_, running, outbox = rank.open, rank.running, rank.outbox
    while outbox and (open_ or running):
        if outbox[0] == "W":
            running = False
        else:
            open_ -= 1
        outbox = outbox[1:]
    done = not (open_ or running)
    return rank._replace(phase="answered" if done else "waiting", open=open_, running=running, outbox=outbox)


def _core(r: int, rank: Rank) -> tuple[Move, Rank] | None:
    """One turn of the busy loop up to the next collective: what lies in the queue is read, then a step begins
    if one must."""
    if rank.place != "loop" or not (rank.on or rank.active or rank.inbox):
        return None
    active, on, adding, inbox = rank.active, rank.on, rank.adding, rank.inbox
    while inbox:
        message, inbox = inbox[0], inbox[1:]
        if message == "w":
            return Move("enters weights", r), rank._replace(
                place="weights", active=active, on=on, adding=adding, inbox=inbox
            )
        active += message == "r"
        if message == "b":
            on = adding = True
        elif message == "e":
            adding = False
    place = "step" if on or active else "loop"
    what = "idles" if place == "loop" else "steps" if active else "steps dummy"
    return Move(what, r), rank._replace(place=place, active=active, on=on, adding=adding, inbox=inbox)


def _step(protocol: Protocol, case: Case, state: State) -> Iterator[tuple[Move, State]]:
    """The collective of a step, once all who take part are in it, and then the question whether the wave is
    over, if it is due.

    Each rank finishes any number of its requests in it: requests may be of any length.
    """
    if not protocol.lockstep:
        for r, rank in enumerate(state.ranks):
            for n in range(rank.active + 1) if rank.place == "step" else ():
                after = rank._replace(place="loop", active=rank.active - n, outbox=_put(rank, "d" * n))
                yield Move("finishes", r, n), _with(state, r, after)
        return
    if any(rank.place != "step" for rank in state.ranks):
        return
    steps = (state.steps + 1) % case.period
    for done in product(*(range(rank.active + 1) for rank in state.ranks)):
        ranks = [
            rank._replace(place="loop", on=True, active=rank.active - n, outbox=_put(rank, "d" * n))
            for rank, n in zip(state.ranks, done, strict=True)
        ]
        over = steps == 0 and not any(rank.active or _is_adding(protocol, rank) for rank in ranks)
        if over:
            ranks = [rank._replace(on=False, outbox=_put(rank, "W")) for rank in ranks]
        yield Move("wave ends" if over else "step", -1, sum(done)), State(state.round, steps, tuple(ranks))


def _is_adding(protocol: Protocol, rank: Rank) -> bool:
    return rank.adding and not (protocol.watches_worker and rank.phase == "dead")


def _put(rank: Rank, what: str) -> str:
    return "" if rank.phase == "dead" else rank.outbox + what


def _server(case: Case, state: State) -> Iterator[tuple[Move, State]]:
    """The barrier between rounds: no worker hears of the next before all have answered and have the new
    weights."""
    ranks = state.ranks
    if state.round and all(rank.phase == "answered" for rank in ranks):
        if state.round == case.rounds:
            yield Move("last answer", -1), state._replace(round=0)
        else:
            yield (
                Move("sends weights", -1),
                state._replace(ranks=tuple(rank._replace(phase="sync") for rank in ranks)),
            )
    if all(rank.place == "weights" for rank in ranks):
        told = tuple(
            rank._replace(place="loop", phase="told" if rank.phase != "dead" else "dead") for rank in ranks
        )
        yield Move("weights synced", -1), state._replace(round=state.round + 1, ranks=told)
