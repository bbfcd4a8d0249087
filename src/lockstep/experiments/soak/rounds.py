"""What a soak does, as data: its settings, and each round, which follows from seed and number. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Chance = Callable[[], float]
"""Uniform in [0, 1)."""

PAUSES_FOR_S = 5.0
"""Pauses begin only while a worker has run for less than this in a round: a hang must be left alone."""
LONGEST_PAUSE_S = 3.0
"""Longer ones are cut: a worker must not be taken for dead (5 s without a line in its ledger)."""


@dataclass(frozen=True)
class Prompt:
    """One row of the data set: the question, and its pictures as base64."""

    text: str
    images: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a soak's rounds are. Two with the same settings play the same rounds."""

    remedy: str
    seed: int
    device: str
    workers: int
    """Processes that add requests; the server gives each its share of a round's."""
    requests: tuple[int, int] = (2, 6)
    """Least and most requests a round, for each worker."""
    max_tokens: tuple[int, int] = (1, 4)
    """Least and most tokens of an answer; the same for all answers of a round, as in the job."""
    pictures: float = 0.3
    """Share of requests that come with a picture."""
    pause_rate: float = 3.0
    """Pauses of each worker per second in which it is not paused; 0 for none."""
    pause_s: float = 0.3
    """Their mean length in seconds. Both the gaps and the lengths are exponentially distributed."""
    load: int = 0
    """Processes that keep a core busy all the while."""
    only: int | None = None
    """Play this round over and over, instead of one after another."""


@dataclass(frozen=True)
class Pause:
    after_s: float
    """From the begin of the round, or the end of the pause before."""
    length_s: float


@dataclass(frozen=True)
class Round:
    number: int
    prompts: tuple[Prompt, ...]
    max_tokens: int
    seed: int
    """For the engines' sampling."""
    pauses: tuple[tuple[Pause, ...], ...]
    """For each worker."""


def plan(settings: Settings, number: int, prompts: Sequence[Prompt]) -> Round:
    """The soak's round of that number, from 0; always the same one."""
    number = number if settings.only is None else settings.only
    # Of the generator's methods, only random() is promised never to change its sequence.
    chance = random.Random(f"{settings.seed}:{number}").random
    least, most = (bound * settings.workers for bound in settings.requests)
    chosen = [_draw(chance, settings.pictures, prompts) for _ in range(_between(chance, least, most))]
    return Round(
        number,
        tuple(chosen),
        _between(chance, *settings.max_tokens),
        _between(chance, 1, 2**31 - 1),
        tuple(_pauses(chance, settings) for _ in range(settings.workers)),
    )


def warm_up(settings: Settings, prompts: Sequence[Prompt]) -> Round:
    """A round for engines that have just been started: their first one takes many times as long. It counts
    for nothing and cannot hang: each worker adds one request, so that none is late (docs/protocol.md).
    """
    return Round(-1, tuple(prompts[: settings.workers]), 1, 1, ((),) * settings.workers)


def _between(chance: Chance, least: int, most: int) -> int:
    return least + int(chance() * (most - least + 1))


def _exponential(chance: Chance, mean: float) -> float:
    return -mean * math.log1p(-chance())


def _draw(chance: Chance, pictures: float, prompts: Sequence[Prompt]) -> Prompt:
    prompt = prompts[_between(chance, 0, len(prompts) - 1)]
    if chance() < pictures:
        return prompt
    return Prompt(prompt.text.replace("<image>", ""), ())


def _pauses(chance: Chance, settings: Settings) -> tuple[Pause, ...]:
    pauses: list[Pause] = []
    ran = 0.0
    while settings.pause_rate > 0:
        after = _exponential(chance, 1 / settings.pause_rate)
        ran += after
        if ran >= PAUSES_FOR_S:
            break
        pauses.append(Pause(after, min(_exponential(chance, settings.pause_s), LONGEST_PAUSE_S)))
    return tuple(pauses)
