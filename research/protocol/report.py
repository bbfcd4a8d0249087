"""The cases of docs/protocol.md, run and put into words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from protocol.model import INDEPENDENT, OPEN_WAVE, SHIPPED, Case, Move, Protocol
from protocol.search import Result, Stop, search

SILENT = replace(
    OPEN_WAVE, name="open wave, a worker without requests says nothing", announces_when_empty=False
)
HASTY = replace(OPEN_WAVE, name="open wave, a failed worker answers at once", drains=False)
TRUSTING = replace(OPEN_WAVE, name="open wave, a worker is never taken for dead", watches_worker=False)

ONE, ALL = frozenset({1}), frozenset({0, 1})
CURED: tuple[Case, ...] = (
    Case((2, 2)),
    Case((3, 2)),
    Case((2, 0)),
    Case((2, 2), fails=ONE),
    Case((2, 2), rounds=3, fails=ALL),
    Case((1, 1, 1)),
    Case((2, 1, 1)),
    Case((2, 1, 0)),
    Case((2, 1, 1), rounds=1, fails=ONE),
)
"""Two and three ranks; a rank without requests; workers whose calls may raise before any request or after
some."""

CASES: tuple[tuple[Protocol, Case], ...] = (
    *((SHIPPED, Case((2, 2), period=period)) for period in (1, 2, 3, 4)),
    *((SHIPPED, case) for case in CURED[1:] if case.rounds < 3),
    (SHIPPED, Case((2, 2), rounds=1, fails=ALL)),
    *((INDEPENDENT, case) for case in CURED),
    *((OPEN_WAVE, Case((2, 2), period=period)) for period in (1, 3, 4)),
    *((OPEN_WAVE, case) for case in CURED),
    (SILENT, Case((2, 0))),
    (HASTY, Case((2, 2), fails=ALL)),
    *(
        (protocol, Case((2, 2), rounds=1, dies=ONE))
        for protocol in (SHIPPED, INDEPENDENT, OPEN_WAVE, TRUSTING)
    ),
)

WORDS = {
    "announces": "worker {r} announces that it begins to add requests",
    "begins": "worker {r} begins to add its requests",
    "adds": "worker {r} adds a request",
    "waits": "worker {r} has no more to add and waits for answers",
    "fails": "worker {r}'s call raises",
    "dies": "worker {r} dies",
    "reads": "worker {r} reads what its engine core has put out",
    "passes weights": "worker {r} passes the weight sync on to its engine core",
    "enters weights": "engine core {r} enters the weight sync and waits for the others",
    "idles": "engine core {r} reads its queue and has nothing to do",
    "steps": "engine core {r} begins a step and waits in the all-reduce for the others",
    "steps dummy": "engine core {r} begins a dummy step and waits in the all-reduce for the others",
    "finishes": "engine core {r} ends its step; {n} of its requests finish in it",
    "step": "all are in the step: it ends; {n} requests finish in it",
    "wave ends": "all are in the step: it ends, {n} requests finish in it; nobody has an unfinished one: "
    "the wave is over",
    "last answer": "the server answers the last round",
    "sends weights": "every worker has answered, and so the server; the next weights are announced to "
    "every worker",
    "weights synced": "every engine core has the weights; the server sends the next round to every worker",
}

PLACES = {
    "answered": "has answered",
    "waiting": "waits for answers",
    "syncing": "waits for the weight sync",
    "dead": "is dead",
    "blocked": "is blocked in its queue",
    "step": "waits in a step's all-reduce",
    "weights": "waits in the weight sync",
}


def lines(cases: Sequence[tuple[Protocol, Case]] = CASES) -> Iterator[str]:
    """The report, line by line as it comes about."""
    told: set[Protocol] = set()
    yield "protocol; requests per rank; rounds; period: states, deadlocks"
    for protocol, case in cases:
        result = search(protocol, case)
        yield _row(result)
        if case.dies or protocol in told:
            yield from (f"    {_place(stop)}" for stop in result.stops if case.dies)
        elif result.stops and case.period > 1:
            told.add(protocol)
            yield from (f"    {line}" for line in _stops(result, full=protocol is SHIPPED))


def _row(result: Result) -> str:
    case = result.case
    what = [f"{result.protocol.name}; {case.requests}; {case.rounds}; {case.period}"]
    what += [f"worker {r}'s call may raise" for r in sorted(case.fails)] + [
        f"worker {r} may die" for r in sorted(case.dies)
    ]
    stepping = f", {result.endless} states with no way out of stepping" if result.endless else ""
    return f"{'; '.join(what)}: {result.states} states, {result.deadlocks or 'no'} deadlocks{stepping}"


def _stops(result: Result, full: bool) -> Iterator[str]:
    """The shortest trace into a deadlock; `full`: into each kind. The same with the ranks in another order is
    no other kind."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    for stop in result.stops:
        kind = tuple(sorted(stop.where))
        if kind in seen:
            continue
        first = not seen
        seen.add(kind)
        if not first and not full:
            break
        yield f"{'the shortest way into a deadlock' if first else 'another kind'}, {len(stop.trace)} moves:"
        yield from (f"  {n:2}. {_words(move)}" for n, (move, _) in enumerate(stop.trace, 1))
        yield f"  {_place(stop)}"


def _place(stop: Stop) -> str:
    ranks = (
        f"worker {r} {PLACES[phase]}, engine core {r} {PLACES[place]}"
        for r, (phase, place) in enumerate(stop.where)
    )
    return "stuck: " + "; ".join(ranks)


def _words(move: Move) -> str:
    return WORDS[move.what].format(r=move.rank, n=move.detail)


def shortest(result: Result) -> list[str]:
    """The shortest trace into a deadlock, in words; empty if there is none."""
    return [_words(move) for move, _ in result.stops[0].trace] if result.stops else []
