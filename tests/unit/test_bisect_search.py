"""Picking releases: as git bisect does, with few runs, around those that cannot be tested."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from lockstep.experiments.bisect.search import Found, Mark, conclude, next_release

GOOD, BAD, UNTESTABLE = Mark.GOOD, Mark.BAD, Mark.UNTESTABLE


def play(truth: list[Mark], marks: dict[int, Mark] | None = None) -> tuple[Found, list[int]]:
    marks, order = dict(marks or {}), []
    while (number := next_release(len(truth), marks)) is not None:
        assert number not in marks
        marks[number] = truth[number]
        order.append(number)
    return conclude(len(truth), marks), order


@given(st.integers(2, 300), st.data(), st.booleans())
def test_the_change_is_found_in_few_runs(count: int, data: st.DataObject, cured: bool) -> None:
    at = data.draw(st.integers(1, count - 1))
    old, new = (BAD, GOOD) if cured else (GOOD, BAD)
    found, order = play([old] * at + [new] * (count - at))
    assert found == Found(at, at - 1, ())
    assert len(order) <= math.ceil(math.log2(count)) + 2


@given(st.integers(2, 300), st.data())
def test_ends_that_are_known_are_not_run(count: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, count - 1))
    found, order = play([BAD] * at + [GOOD] * (count - at), {0: BAD, count - 1: GOOD})
    assert found.first == at
    assert len(order) <= math.ceil(math.log2(count))
    assert not {0, count - 1} & set(order)


@given(st.integers(1, 60), st.data())
def test_untestable_releases_are_gone_around_and_never_blamed(count: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, count))
    holes = data.draw(st.sets(st.integers(0, count - 1)))
    truth = [UNTESTABLE if i in holes else BAD if i < at else GOOD for i in range(count)]
    found, order = play(truth)
    assert len(set(order)) == len(order)
    tested = [i for i in range(count) if i not in holes]
    before, after = [i for i in tested if i < at], [i for i in tested if i >= at]
    if before and after:
        assert (found.before, found.first) == (before[-1], after[0])
        assert all(i in holes for i in found.between)
    else:
        assert found.first is None


def test_no_change() -> None:
    found, order = play([BAD] * 9)
    assert found == Found(None, 8, ())
    assert order == [0, 8]


def test_nothing_can_be_tested() -> None:
    found, order = play([UNTESTABLE] * 3)
    assert found == Found(None, None, ())
    assert order == [0, 1, 2]


def test_the_neighbours_of_an_untestable_middle_come_next() -> None:
    truth = [BAD] * 4 + [UNTESTABLE] + [GOOD] * 4
    found, order = play(truth)
    assert order[:3] == [0, 8, 4]
    assert set(order[3:]) <= {1, 2, 3, 5, 6, 7}
    assert found == Found(5, 3, (4,))


def test_one_release_alone() -> None:
    assert play([GOOD]) == (Found(None, 0, ()), [0])
