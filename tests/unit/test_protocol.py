"""The search finds the deadlocks of the protocol as shipped, none in the cured ones, and each part of open
wave is needed."""

from __future__ import annotations

import pytest

from protocol import INDEPENDENT, OPEN_WAVE, SHIPPED, Case, search
from protocol.model import State, finished, moves, start
from protocol.report import HASTY, SILENT, TRUSTING, lines, shortest

BLOCKED = ("answered", "blocked")
IN_STEP = ("waiting", "step")
IN_WEIGHTS = ("syncing", "weights")

FEW = [
    Case((2, 2)),
    Case((2, 1)),
    Case((2, 0)),
    Case((2, 2), rounds=1, fails=frozenset({0, 1})),
    Case((1, 1, 1), rounds=1),
    Case((2, 1, 0), rounds=1, fails=frozenset({1})),
]


def test_shipped_deadlocks_as_the_incident_did() -> None:
    result = search(SHIPPED, Case((2, 2)))
    assert result.deadlocks
    assert not result.ends
    assert sorted(result.stops[0].where) == [BLOCKED, IN_STEP]
    trace = shortest(result)
    assert trace[-1] == "engine core 1 begins a step and waits in the all-reduce for the others"
    over = next(n for n, words in enumerate(trace) if "the wave is over" in words)
    # The wave ends while a request of the late worker lies unread in its engine core's queue.
    assert result.stops[0].trace[over][1].ranks[1].inbox == "r"


def test_shipped_deadlocks_in_weight_sync_too() -> None:
    """A worker that has read the end of an older wave answers while its engine core still steps."""
    kinds = {tuple(sorted(stop.where)) for stop in search(SHIPPED, Case((2, 2))).stops}
    assert kinds == {(BLOCKED, IN_STEP), (("syncing", "step"), IN_WEIGHTS)}


@pytest.mark.parametrize("period", [2, 3, 4])
def test_kinds_of_deadlock_do_not_depend_on_the_period(period: int) -> None:
    stops = search(SHIPPED, Case((2, 2), period=period)).stops
    assert {stop.where for stop in stops} == {
        stop.where for stop in search(SHIPPED, Case((2, 2), period=5)).stops
    }


def test_one_request_a_rank_cannot_be_late() -> None:
    assert search(SHIPPED, Case((1, 1))).ends


@pytest.mark.parametrize("case", [Case((2, 0)), Case((1, 1), fails=frozenset({1}))])
def test_shipped_deadlocks_when_a_worker_adds_nothing(case: Case) -> None:
    result = search(SHIPPED, case)
    assert (IN_STEP, BLOCKED) in {stop.where for stop in result.stops}


def test_shipped_deadlocks_with_three_ranks() -> None:
    assert search(SHIPPED, Case((2, 1, 1), rounds=1)).deadlocks


@pytest.mark.parametrize("protocol", [INDEPENDENT, OPEN_WAVE], ids=lambda protocol: str(protocol.name))
@pytest.mark.parametrize("case", FEW, ids=str)
def test_cured_protocols_always_end(protocol: object, case: Case) -> None:
    assert search(protocol, case).ends  # type: ignore[arg-type]


def test_workers_without_requests_must_announce_too() -> None:
    assert [stop.where for stop in search(SILENT, Case((2, 0))).stops] == [(IN_STEP, BLOCKED)]


def test_failed_workers_must_wait_for_the_end_of_the_wave() -> None:
    result = search(HASTY, Case((1, 1), fails=frozenset({0, 1})))
    assert IN_WEIGHTS in result.stops[0].where
    assert search(OPEN_WAVE, Case((1, 1), fails=frozenset({0, 1}))).ends


def test_a_dead_worker_must_not_keep_the_wave_open() -> None:
    case = Case((2, 1), rounds=1, dies=frozenset({1}))
    assert search(TRUSTING, case).endless
    assert not search(OPEN_WAVE, case).endless


def test_a_worker_that_dies_before_it_announces_holds_its_peers() -> None:
    stops = search(OPEN_WAVE, Case((1, 1), rounds=1, dies=frozenset({1}))).stops
    assert (IN_STEP, ("dead", "blocked")) in {stop.where for stop in stops}


def test_the_wave_ends_only_when_nobody_adds() -> None:
    """An invariant of open wave: whenever the wave ends, no request lies unread and no worker is adding."""
    case = Case((2, 1))
    seen: set[State] = set()
    queue = [start(case)]
    ends = 0
    while queue:
        state = queue.pop()
        if state in seen or finished(state):
            continue
        seen.add(state)
        for move, after in moves(OPEN_WAVE, case, state):
            queue.append(after)
            if move.what == "wave ends":
                ends += 1
                assert all(
                    rank.phase in ("waiting", "answered") and "r" not in rank.inbox for rank in state.ranks
                )
    assert ends


def test_report_prints_the_shortest_trace() -> None:
    text = list(lines([(SHIPPED, Case((2, 2))), (OPEN_WAVE, Case((2, 0)))]))
    assert any("the shortest way into a deadlock, 17 moves" in line for line in text)
    assert text[-1] == "open wave; (2, 0); 2; 2: 1756 states, no deadlocks"
    assert "the wave is over" in "\n".join(text)


def test_no_ranks() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        search(SHIPPED, Case(()))
