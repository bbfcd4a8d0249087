"""Looks at every state that can be reached, breadth first, so that the first trace to a state is a shortest
one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.model import Case, Move, Protocol, State, finished, moves, start


@dataclass(frozen=True)
class Stop:
    """States in which nothing can happen any more although not all is done, by where each rank stands."""

    where: tuple[tuple[str, str], ...]
    """Per rank: phase of the worker, place of the engine core (`blocked`: in its queue)."""
    states: int
    trace: list[tuple[Move, State]]
    """A shortest way into one of them."""


@dataclass(frozen=True)
class Result:
    protocol: Protocol
    case: Case
    states: int
    deadlocks: int
    trapped: int
    """States, other than deadlocks, from which all paths miss the end: the ranks go on for ever, or run into
    a deadlock."""
    endless: int
    """States from which neither the end nor a deadlock can be reached: the ranks step for ever."""
    stops: list[Stop] = field(default_factory=list)
    """The kinds of deadlock, that with the shortest trace first."""

    @property
    def ends(self) -> bool:
        """From every state that can be reached, the end can be."""
        return not (self.deadlocks or self.trapped)


def search(protocol: Protocol, case: Case) -> Result:
    """Raises ValueError for a case that has no ranks."""
    if not case.requests:
        raise ValueError("a case needs at least one rank")
    first = start(case)
    origin: dict[State, tuple[State, Move] | None] = {first: None}
    before: dict[State, list[State]] = {}
    good: list[State] = []
    dead: list[State] = []
    queue = deque([first])
    while queue:
        state = queue.popleft()
        if finished(state):
            good.append(state)
            continue
        stuck = True
        for move, after in moves(protocol, case, state):
            # A death is something that may happen, not something that gets the ranks on.
            stuck = stuck and move.what == "dies"
            before.setdefault(after, []).append(state)
            if after not in origin:
                origin[after] = (state, move)
                queue.append(after)
        if stuck:
            dead.append(state)
    ending = _reaching(good, before)
    settled = _reaching(dead, before) | ending
    stops: dict[tuple[tuple[str, str], ...], list[State]] = {}
    for state in dead:
        stops.setdefault(_where(state), []).append(state)
    kinds = [Stop(where, len(states), _trace(states[0], origin)) for where, states in stops.items()]
    return Result(
        protocol,
        case,
        states=len(origin),
        deadlocks=len(dead),
        trapped=len(origin) - len(ending | set(dead)),
        endless=len(origin) - len(settled),
        stops=kinds,
    )


def _reaching(targets: list[State], before: dict[State, list[State]]) -> set[State]:
    found = set(targets)
    queue = deque(targets)
    while queue:
        for state in before.get(queue.popleft(), ()):
            if state not in found:
                found.add(state)
                queue.append(state)
    return found


def _where(state: State) -> tuple[tuple[str, str], ...]:
    return tuple((rank.phase, "blocked" if rank.place == "loop" else rank.place) for rank in state.ranks)


def _trace(state: State, origin: dict[State, tuple[State, Move] | None]) -> list[tuple[Move, State]]:
    steps: list[tuple[Move, State]] = []
    while (came := origin[state]) is not None:
        steps.append((came[1], state))
        state = came[0]
    return steps[::-1]
