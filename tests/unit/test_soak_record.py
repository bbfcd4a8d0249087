"""The soak's file: goes on where it stopped, refuses another soak, says which line is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.experiments.soak.record import Record, RecordError, read, seed_of
from lockstep.experiments.soak.rounds import Settings

SETTINGS = Settings(remedy="as shipped", seed=7, device="cpu", workers=2)
ROUND: dict[str, Any] = {"s": 0.5, "requests": 6, "pauses": 2, "paused_s": 0.4, "load": 1.5}
HANG: dict[str, Any] = {**ROUND, "text": "rank 0 waits", "group": "rollout.dp", "cause": "offline-wave-race"}


def played(path: Path) -> Record:
    record = Record(path, SETTINGS)
    record.add("start", s=30.0, host="2 cores", ledgers="x")
    record.add("round", n=0, **ROUND)
    record.add("hang", n=1, **HANG)
    record.add("start", s=31.0, host="2 cores", ledgers="x")
    record.add("round", n=2, **ROUND)
    return record


def test_a_soak_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "x.jsonl"
    played(path)
    record = Record(path, SETTINGS)
    for tally in (record.tally, read(path)):
        assert (tally.rounds, tally.answered, len(tally.hangs), tally.starts) == (3, 2, 1, 2)
        assert (tally.requests, tally.pauses, tally.answered_s) == (18, 6, 1.0)
        assert tally.hangs[0]["text"] == "rank 0 waits"
    record.add("failed", n=3, **{**HANG, "text": "500"})
    again = read(path)
    assert (again.rounds, again.answered, len(again.hangs), len(again.failures)) == (4, 2, 1, 1)
    assert len(path.read_text().splitlines()) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8}, {"remedy": "open wave"}, {"requests": (1, 2)}, {"max_tokens": (1, 1)}, {"load": 1},
        {"pictures": 0.5}, {"pause_rate": 1.0}, {"pause_s": 1.0}, {"device": "cuda"}, {"workers": 3},
        {"only": 1},
    ],
)  # fmt: skip
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "x.jsonl"
    played(path)
    before = path.read_bytes()
    (name,) = change
    with pytest.raises(RecordError, match=rf"x\.jsonl: this soak was begun with {name} .*another --name"):
        Record(path, replace(SETTINGS, **change))
    assert path.read_bytes() == before


def test_the_last_line_of_a_killed_soak_is_played_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    played(path)
    path.write_bytes(path.read_bytes()[:-5])
    record = Record(path, SETTINGS)
    assert record.tally.rounds == 2
    record.add("round", n=2, **ROUND)
    assert read(path).rounds == 3


def test_a_file_cut_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"k": "settings", "v"')
    assert seed_of(path) is None
    assert Record(path, SETTINGS).tally.rounds == 0
    assert read(path).settings == SETTINGS


def test_the_seed_of_a_record(tmp_path: Path) -> None:
    assert seed_of(tmp_path / "x.jsonl") is None
    played(tmp_path / "x.jsonl")
    assert seed_of(tmp_path / "x.jsonl") == 7


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (1, "nonsense"),
        (1, '{"k": "round"}'),
        (1, '{"k": "settings", "v": 99}'),
        (3, "nonsense"),
        (3, "[]"),
        (3, json.dumps({"k": "round", "n": 0})),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: int, text: str) -> None:
    path = tmp_path / "x.jsonl"
    played(path)
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError, match=rf"x\.jsonl:{line}: expected a line of a soak's record"):
        read(path)


def test_an_empty_file_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    with pytest.raises(RecordError, match=r"x\.jsonl:1: expected the soak's settings"):
        read(tmp_path / "x.jsonl")
