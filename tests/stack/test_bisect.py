"""One step of a bisection for real: an environment is built around a checkout, and the job run in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import jobs
import pytest

OUT = jobs.ROOT / ".lockstep" / "tests" / "bisect"
"""Beside the other runs: from uv's cache to here files may be linked, and a new environment costs seconds."""
RELEASE = "3.10.3.post1"
"""Another one than the pinned: a checkout is not what the constraints have."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The installed ms-swift as a source tree."""
    # Not imported: trl, which it imports, would look for vLLM before the CPU build is complete.
    installed = next(Distribution.discover(name="ms-swift"), None)
    if installed is None:
        pytest.skip("ms-swift is not installed")
    tree = tmp_path / "ms-swift"
    package = Path(str(installed.locate_file("swift")))
    shutil.copytree(package, tree / "swift", ignore=shutil.ignore_patterns("__pycache__"))
    scripts = {
        entry.name: entry.value for entry in installed.entry_points if entry.group == "console_scripts"
    }
    needs = [line for line in installed.requires or [] if "extra ==" not in line]
    (tree / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        f"[project]\nname = 'ms-swift'\nversion = '{RELEASE}'\ndependencies = {json.dumps(needs)}\n"
        "[project.scripts]\n" + "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in scripts.items()) +
        "[tool.setuptools.packages.find]\ninclude = ['swift*']\nnamespaces = true\n"
        "[tool.setuptools.package-data]\n'*' = ['*']\n"
    )  # fmt: skip
    return tree


@pytest.mark.lockstep_slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not on PATH")
def test_a_checkout_that_hangs_is_bad(checkout: Path) -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "lockstep",
        "probe-release",
        "--source",
        str(checkout),
        "--out",
        str(OUT),
    ]
    try:
        with jobs.leaves_nothing(OUT):
            done = subprocess.run(command, cwd=jobs.ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stdout + done.stderr
        assert (
            f"ms-swift {checkout.name}: bad: group rollout.dp (2 ranks): rank 0 waits in all_reduce"
            in done.stdout
        )
        (tried,) = (json.loads(line) for line in (OUT / "log.jsonl").read_text().splitlines())
        assert (tried["outcome"], tried["group"], tried["source"]) == ("bad", "rollout.dp", True)
        assert tried["moved"]["ms-swift"] == ["3.10.3", RELEASE]
        assert sorted(path.name for path in checkout.iterdir()) == ["pyproject.toml", "swift"]
    finally:
        shutil.rmtree(OUT, ignore_errors=True)
