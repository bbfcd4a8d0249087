"""A round follows from the settings and its number, and is within them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.experiments.soak.rounds import LONGEST_PAUSE_S, PAUSES_FOR_S, Prompt, Settings, plan, warm_up

PROMPTS = [Prompt(f"<image>What is this? {n}", (f"picture {n}",)) for n in range(9)]
SETTINGS = Settings(remedy="as shipped", seed=7, device="cpu", workers=2)


def test_the_same_settings_and_number_give_the_same_round() -> None:
    again = replace(SETTINGS)
    assert [plan(SETTINGS, n, PROMPTS) for n in range(20)] == [plan(again, n, PROMPTS) for n in range(20)]
    other = replace(SETTINGS, seed=8)
    assert plan(SETTINGS, 3, PROMPTS) != plan(SETTINGS, 4, PROMPTS)
    assert plan(SETTINGS, 3, PROMPTS).seed != plan(other, 3, PROMPTS).seed


def test_rounds_stay_what_they_are() -> None:
    """A soak is gone on with, and a round repeated, by a later release: that must not change a round without
    a new `lockstep.experiments.soak.record.VERSION`."""
    first = plan(SETTINGS, 0, PROMPTS)
    assert (len(first.prompts), first.max_tokens, first.seed) == FIRST
    assert [prompt.text[-1] for prompt in first.prompts] == FIRST_PROMPTS
    assert [round(pause.after_s, 6) for pause in first.pauses[0][:3]] == FIRST_GAPS


FIRST = (10, 3, 475397658)
FIRST_PROMPTS = list("0322462028")
FIRST_GAPS = [0.05603, 0.835087, 0.069312]


def test_rounds_are_within_the_settings() -> None:
    settings = replace(SETTINGS, requests=(2, 3), max_tokens=(4, 6), workers=2)
    rounds = [plan(settings, n, PROMPTS) for n in range(300)]
    assert {len(r.prompts) for r in rounds} == {4, 5, 6}
    assert {r.max_tokens for r in rounds} == {4, 5, 6}
    assert all(r.seed >= 1 for r in rounds)
    assert {r.number for r in rounds} == set(range(300))
    assert {prompt.text[-1] for r in rounds for prompt in r.prompts} == {str(n) for n in range(9)}


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (1.0, 1, 1), (0.3, 0.25, 0.35)])
def test_pictures(share: float, least: float, most: float) -> None:
    settings = replace(SETTINGS, pictures=share)
    prompts = [prompt for n in range(300) for prompt in plan(settings, n, PROMPTS).prompts]
    assert least <= sum(bool(prompt.images) for prompt in prompts) / len(prompts) <= most
    # A mark without its picture, or the other way round, is refused by ms-swift.
    assert all(prompt.text.count("<image>") == len(prompt.images) for prompt in prompts)


def test_pauses_come_at_their_rate_and_last_their_mean() -> None:
    settings = replace(SETTINGS, pause_rate=4.0, pause_s=0.2)
    pauses = [p for n in range(400) for worker in plan(settings, n, PROMPTS).pauses for p in worker]
    assert len(pauses) / 800 == pytest.approx(4.0 * PAUSES_FOR_S, rel=0.05)
    assert sum(p.length_s for p in pauses) / len(pauses) == pytest.approx(0.2, rel=0.05)
    for n in range(50):
        for worker in plan(settings, n, PROMPTS).pauses:
            assert sum(p.after_s for p in worker) < PAUSES_FOR_S


def test_workers_are_paused_each_for_itself() -> None:
    one, other = plan(SETTINGS, 0, PROMPTS).pauses
    assert one != other


def test_a_long_pause_is_cut() -> None:
    settings = replace(SETTINGS, pause_s=100.0)
    lengths = [p.length_s for n in range(20) for p in plan(settings, n, PROMPTS).pauses[0]]
    assert max(lengths) == LONGEST_PAUSE_S


def test_no_pauses() -> None:
    assert plan(replace(SETTINGS, pause_rate=0.0), 0, PROMPTS).pauses == ((), ())


def test_a_warm_up_is_one_request_a_worker_without_pauses() -> None:
    warm = warm_up(replace(SETTINGS, workers=3), PROMPTS)
    assert warm.prompts == tuple(PROMPTS[:3])
    assert warm.pauses == ((), (), ())


def test_one_round_over_and_over() -> None:
    settings = replace(SETTINGS, only=12)
    assert plan(settings, 0, PROMPTS) == plan(settings, 5, PROMPTS) == plan(SETTINGS, 12, PROMPTS)
