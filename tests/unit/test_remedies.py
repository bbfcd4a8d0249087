"""Remedies as data, what they change in a job, and the page of what became of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lockstep import remedies
from lockstep.causes import CAUSES
from lockstep.experiments.remedies.page import write_page
from lockstep.remedies.model import NOT_MEASURED, Change
from lockstep.remedies.tried import AS_SHIPPED, TRIED
from lockstep.stacks.swift.remedied import cured
from lockstep.stacks.swift.spec import JobSpec, cpu_job


def job() -> JobSpec:
    return cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))


@pytest.mark.parametrize("remedy", TRIED, ids=lambda remedy: str(remedy.name))
def test_plugins_are_there_and_settings_change_something(remedy: remedies.Tried) -> None:
    if remedy.kind == "plugin":
        file = remedies.plugin(remedy.name)
        assert file is not None
        assert file.is_file()
    else:
        assert remedies.plugin(remedy.name) is None
    # Ports are chosen anew for every run, and nothing is nothing.
    assert (remedy.change == Change() and not remedy.file) == (remedy.name in (AS_SHIPPED, "other ports"))


@pytest.mark.parametrize("remedy", TRIED, ids=lambda remedy: str(remedy.name))
def test_only_what_was_measured_is_said_to_help(remedy: remedies.Tried) -> None:
    """Every command advises what helps, and the audit calls a script that has it cured."""
    assert not remedy.helps or remedy.measured != NOT_MEASURED


def test_unknown_name() -> None:
    with pytest.raises(KeyError):
        remedies.plugin("prayer")


def test_what_helps_is_what_diagnosis_recommends() -> None:
    named = [remedy.name for remedy in CAUSES["offline-wave-race"].remedies]
    assert named == [*(remedy.name for remedy in TRIED if remedy.helps), "later ms-swift"]


def test_cured_changes_what_the_remedy_says_and_nothing_else() -> None:
    plain = job()
    servers = cured(plain, remedies.tried("two servers"))
    assert (servers.servers, servers.layout) == (2, plain.layout)
    tensor = cured(plain, remedies.tried("tensor parallel"))
    assert (tensor.layout.tensor_parallel, tensor.layout.data_parallel, tensor.servers) == (2, 1, 1)
    inside = cured(plain, remedies.tried("no engine process"))
    assert inside.rollout_env == {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    assert inside.rollout == plain.rollout
    engine = cured(plain, remedies.tried("async engine"))
    assert {**plain.rollout, "vllm_use_async_engine": True} == engine.rollout
    longer = cured(plain, remedies.tried("longer timeout"))
    assert {**plain.trainer, "ddp_timeout": 7200} == longer.trainer
    assert plain == job()


def row(name: str, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "remedy": name,
        "outcome": "through",
        "verdict": "in step",
        "group": "",
        "waiting": [],
        "absent": [],
        "sentence": "",
        "why": "",
        "as_expected": True,
        "against_control": 0.97,
    }
    return made | changes


def test_page_tells_what_happened_and_what_was_not_run(tmp_path: Path) -> None:
    page = tmp_path / "remedies.md"
    hang = {"outcome": "hangs", "verdict": "stuck", "group": "rollout.dp", "waiting": [0], "absent": [1]}
    rows = [
        row("control", against_control=1.0),
        row(AS_SHIPPED, **hang, against_control=None, sentence="Rank 0 waits."),
        row("open wave"),
        row("async engine", **hang, as_expected=False, why="it hung"),
        {"remedy": "tensor parallel", "outcome": "not run", "why": "no", "as_expected": False, "run": ""},
    ]
    write_page(TRIED, rows, page)
    text = page.read_text()
    assert "| as shipped | nothing | **hangs** | stuck | rollout.dp: 0 for 1 |  | nothing |" in text
    assert re.search(r"\| open wave \| `swift rollout .*` \| comes through \| in step \|  \| 0.97 \|", text)
    assert re.search(r"\| tensor parallel \| .* \| not run \|", text)
    assert re.search(r"\| two servers \| .* \| not run \|", text)
    assert "- async engine: **not as expected**. it hung" in text
    assert "- as shipped: Rank 0 waits." in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("| ")} == {8}


def test_the_page_of_the_repository_agrees_with_the_data() -> None:
    """What docs/remedies.md says of a remedy is what the data says was measured."""
    text = (Path(__file__).parents[2] / "docs" / "remedies.md").read_text()
    for remedy in TRIED:
        line = next(line for line in text.splitlines() if line.startswith(f"| {remedy.name} |"))
        expected = "comes through" if remedy.helps else "**hangs**"
        assert "not run" not in line
        assert f"| {expected} |" in line or f"{remedy.name}: **not as expected**" in text
