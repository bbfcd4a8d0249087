"""The incident's script, as it was and as it was pasted."""

from __future__ import annotations

import json

import pytest
from audits import SCRIPTS, read
from typer.testing import CliRunner

from lockstep.audit import Severity, findings, from_paths, from_texts
from lockstep.audit.fix import fix
from lockstep.audit.output import to_json
from lockstep.audit.versions import from_file
from lockstep.cli import app

BOTH = ["launch.sh", "launch.as-posted.txt"]
# Author's line of each finding, in the two forms of the script.
LINES = {
    "launch.sh": {
        "offline-wave-race": 29,
        "rollout-master-port": 21,
        "weight-sync-port-fixed": 51,
        "sleep-instead-of-health-check": 31,
        "gpus-apart": 38,
        "ranks-match-gpus": 39,
    },
    "launch.as-posted.txt": {
        "offline-wave-race": 44,
        "rollout-master-port": 36,
        "weight-sync-port-fixed": 66,
        "sleep-instead-of-health-check": 46,
        "gpus-apart": 53,
        "ranks-match-gpus": 54,
    },
}


def audit_file(name: str, step: int | None = None):
    return findings(from_paths([SCRIPTS / name], from_file(SCRIPTS / "versions.txt")), step)


@pytest.mark.parametrize("name", BOTH)
def test_real_hazard_first_then_what_is_without_effect(name):
    found = audit_file(name)
    serious = [f.id for f in found if f.severity in (Severity.HAZARD, Severity.WARNING)]
    assert serious == [
        "offline-wave-race",
        "rollout-master-port",
        "weight-sync-port-fixed",
        "sleep-instead-of-health-check",
    ]
    assert "vLLM 0.11.0" in found[0].title
    assert "data parallel size 2" in found[0].title


@pytest.mark.parametrize("name", BOTH)
def test_lines_are_the_authors(name):
    lines = {f.id: f.place.line for f in audit_file(name)}
    assert {key: lines[key] for key in LINES[name]} == LINES[name]


@pytest.mark.parametrize("name", BOTH)
def test_clean_bill(name):
    good = {f.id: f for f in audit_file(name, step=5559) if f.severity is Severity.OK}
    assert set(good) == {
        "ports-agree",
        "gpus-apart",
        "server-gpus",
        "ranks-match-gpus",
        "batch-divides",
        "boundaries",
    }
    assert good["boundaries"].title == "step 5559 is neither a save nor an eval step"
    assert "5559 = 13 x 400 + 359" in good["boundaries"].reason
    assert "per data-parallel rank 48" in good["batch-divides"].reason


def test_step_at_a_boundary_is_said():
    found = {f.id: f for f in audit_file("launch.sh", step=5600)}
    assert found["step-at-boundary"].title == "step 5600 is a step of save and eval"


@pytest.mark.parametrize("name", BOTH)
def test_sides_in_json(name):
    job = from_paths([SCRIPTS / name])
    rollout, trainer = to_json(job, findings(job))["processes"]
    assert (rollout["side"], rollout["engine"], rollout["data_parallel_size"]) == (
        "rollout",
        "synchronous",
        2,
    )
    assert rollout["master_port"]["value"].startswith("$(python3 -c")
    assert rollout["uses_master"] is False
    assert trainer["uses_master"] is True
    assert trainer["master_addr"] == {"value": "$MASTER_ADDR", "known": False}
    assert trainer["gpus"]["used"] == list("012345")
    assert trainer["ports"] == {
        "serves_on": None,
        "connects_to": [{"value": "$(get_free_port)", "known": False}],
        "weight_sync": [51216],
    }
    assert trainer["batch"]["completions_per_generation"] == 96
    assert trainer["batch"]["per_dp_rank"] == 48
    assert (trainer["save_every"], trainer["eval_every"]) == (400, 400)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "remedy", [None, "independent-ranks", "open-wave", "async-engine", "tensor-parallel", "no-engine-process"]
)
def test_fix_comes_out_clean(name, remedy):
    (fixed,), left = fix([(name, read(name))], None, remedy)
    assert not left
    assert fixed.diff.startswith(f"--- {name}\n+++ {name}\n")
    again = findings(from_texts([(name, fixed.text)]))
    ids = {f.id for f in again}
    assert not ids & {
        "offline-wave-race",
        "rollout-master-port",
        "rollout-master-addr",
        "pasted",
        "not-understood",
    }
    assert "sleep-instead-of-health-check" not in ids
    assert "health-check" in ids
    assert not any(f.severity is Severity.HAZARD for f in again)
    # Nothing is left to change.
    (twice,), _ = fix([(name, fixed.text)], None, remedy)
    assert twice.diff == ""


def test_fix_is_small():
    (fixed,), _ = fix([("launch.sh", read("launch.sh"))])
    changed = [line for line in fixed.diff.splitlines()[2:] if line.startswith(("+", "-"))]
    assert [line for line in changed if line.startswith("-")] == [
        "-MASTER_ADDR=127.0.0.1 \\",
        "-MASTER_PORT=$VLLM_DIST_PORT \\",
        "-    --vllm_data_parallel_size 2 &",
        "-sleep 120",
    ]
    assert "+    --external_plugins independent_ranks.py &" in changed
    assert sum(line.startswith("+") for line in changed) == 6


def test_command_line():
    runner = CliRunner()
    result = runner.invoke(
        app, ["audit", str(SCRIPTS / "launch.sh"), "--versions", str(SCRIPTS / "versions.txt")]
    )
    assert result.exit_code == 1
    assert result.stdout.startswith("1 hazard: synchronous engine with data parallel size 2 on vLLM 0.11.0")
    assert "launch.sh:29" in result.stdout
    result = runner.invoke(app, ["audit", "--json", "--fix", str(SCRIPTS / "launch.as-posted.txt")])
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["schema"] == "lockstep.audit/1"
    assert shown["hazard"] is True
    assert "+--external_plugins independent_ranks.py &" in shown["fix"]["files"][0]["diff"]
