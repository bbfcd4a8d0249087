"""The table and the page say what the records say."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lockstep.experiments.soak.page import print_table, rate_text, write_page
from lockstep.experiments.soak.record import Tally
from lockstep.experiments.soak.rounds import Settings

SETTINGS = Settings(remedy="as shipped", seed=7, device="cpu", workers=2, pause_rate=4.0, pause_s=0.5, load=2)
LINE = {"s": 0.5, "requests": 6, "pauses": 2, "paused_s": 0.4, "load": 1.5}


def tally(rounds: int, hangs: int, failed: int = 0, settings: Settings = SETTINGS) -> Tally:
    made = Tally(settings)
    made.add({"k": "start", "host": "2 cores, 24 GiB"})
    for n in range(rounds):
        kind = "hang" if n < hangs else "failed" if n < hangs + failed else "round"
        told = {"text": f"rank 0 waits {n}", "group": "rollout.dp", "cause": "offline-wave-race"}
        made.add({"k": kind, "n": n, **LINE, **told})
    return made


def test_rates_in_words() -> None:
    assert rate_text(tally(500, 10)) == "10 hangs in 500 rounds: 2% of them (0.96% to 3.6%)"
    assert rate_text(tally(1000, 0)) == "0 hangs in 1000 rounds: 0% of them (below 0.3%)"
    assert rate_text(tally(100, 0, failed=2)).startswith("0 hangs in 100 rounds, 2 failed: ")
    assert rate_text(tally(0, 0)) == "0 hangs in 0 rounds"


def test_the_page(tmp_path: Path) -> None:
    cured = replace(SETTINGS, remedy="open wave", pause_rate=0.0, load=0)
    path = tmp_path / "soak.md"
    write_page({"one": tally(500, 10), "two": tally(1000, 0, failed=1, settings=cured)}, path)
    text = path.read_text()
    assert "| as shipped | pauses 4/s of 0.5 s, load 2 | 7 | 500 | 10 | 2% | 0.96% to 3.6% | 2.00 |" in text
    assert "| open wave | no pauses | 7 | 1000 | 0 | 0% | below 0.3% | 2.00 |" in text
    assert "Hung in rollout.dp (offline-wave-race): 10. In rounds 0, 1, 2, 3, 4, 5, 6, 7, 8, 9." in text
    assert "Round 0: *rank 0 waits 0*" in text
    assert "Round 0 failed: rank 0 waits 0." in text
    assert "on 2 cores, 24 GiB" in text


def test_the_table() -> None:
    out = io.StringIO()
    print_table(Console(file=out, width=200), [tally(500, 10), tally(0, 0)])
    first, second, third = out.getvalue().splitlines()
    assert " ".join(first.split()) == "remedy conditions seed rounds hangs rate 95% interval rounds/s"
    assert second.split()[-8:] == ["7", "500", "10", "2%", "0.96%", "to", "3.6%", "2.00"]
    assert third.split()[-3:] == ["7", "0", "0"]
