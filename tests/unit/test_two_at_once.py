"""Two processes of a command with the same `--out`: the second says so and touches nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.fixtures.shapes import write_shapes
from lockstep.stacks.swift import pins as stack

PRETENDED = """
import sys, time
from pathlib import Path
from packaging.version import Version
from lockstep.experiments.bisect import command as bisect, releases
from lockstep.experiments.faults import command as faults
from lockstep.experiments.remedies import command as remedies
from lockstep.experiments.stress import session
from lockstep.stacks.swift import description
from lockstep.experiments.soak.arm import Arm

def job(*_, **__):
    print("begun", flush=True)
    time.sleep(60)

description.check_stack = lambda device, **_: {}
description.complete_cpu_build = lambda: None
description.ensure_checkpoint = lambda folder, *_: folder / "tiny"
session.LEAST_FREE_GIB = 0.0
session.run_arms = faults.run_matrix = remedies.run_remedies = Arm.run = bisect.probe = job
releases.list_releases = lambda name, pre=False: [Version(f"3.{minor}.0") for minor in range(10, 20)]
sys.argv[0] = "lockstep"
from lockstep.cli import main
main()
"""
"""The command with everything before and around the job, which only says that it has begun."""
COMMANDS = [
    ["run"],
    ["faults"],
    ["remedies"],
    ["soak", "--stress-minutes", "1"],
    ["bisect", "--bad", "3.10.0"],
    ["probe-release", "3.12.0"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_the_second_is_refused(tmp_path: Path, words: list[str]) -> None:
    write_shapes(tmp_path / "datasets" / "shapes")
    (tmp_path / "constraints").mkdir()
    for device in stack.VLLM:
        (tmp_path / "constraints" / f"{device}.txt").write_text("trl==0.24.0\npeft==0.18.0\n")
    argv = [sys.executable, "-c", PRETENDED, *words, "--out", "out"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=tmp_path, stdout=pipe, stderr=subprocess.STDOUT, text=True) as first:
        assert first.stdout is not None
        try:
            said = []
            for line in first.stdout:
                said.append(line)
                if line == "begun\n":
                    break
            assert said[-1:] == ["begun\n"], said
            second = subprocess.run(
                argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )
        finally:
            first.kill()
    assert second.returncode == (128 if words[0] == "probe-release" else 2)
    assert "begun" not in second.stdout
    told = f"out: another lockstep run (process {first.pid}) is using it; wait, or give --out\n"
    assert second.stderr.startswith("lockstep: ")
    assert second.stderr.endswith(told)
