from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ledgers import Job, Proc, incident, whole_job

import lockstep as package

_RUN = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "vllm", "swift"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, NoTorch())
from lockstep.cli import main
sys.argv[0] = "lockstep"
main()
"""


def lockstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where the stack cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", _RUN, *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(("job", "code", "kind"), [(whole_job(1), 0, "in step"), (incident(1), 1, "stuck")])
def test_verify_says_the_verdict_and_exits_by_it(
    tmp_path: Path, job: list[Proc], code: int, kind: str
) -> None:
    Job(job).write(tmp_path)
    done = lockstep("verify", str(tmp_path))
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith(kind)
    data = json.loads(lockstep("verify", str(tmp_path), "--json").stdout)
    assert data["kind"] == kind


def test_verify_of_part_of_a_job_is_no_claim(tmp_path: Path) -> None:
    job = Job(whole_job(1))
    job.write(tmp_path, without=[sorted(job.files)[0]])
    assert lockstep("verify", str(tmp_path)).returncode == 4


def test_verify_of_nothing_says_what_was_expected(tmp_path: Path) -> None:
    done = lockstep("verify", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"lockstep: {tmp_path}: no ledger here: expected files named trainer-*.jsonl"
    )
    assert lockstep("verify").returncode == 2


def test_help_tells_the_exit_codes() -> None:
    done = lockstep("verify", "--help")
    assert done.returncode == 0
    assert "0 in step, 1 diverged or stuck, 2 wrong usage" in " ".join(done.stdout.split()).replace("│ ", "")


def test_help_tells_the_code_of_an_error_of_our_own() -> None:
    assert "Exit code 70, in every command" in " ".join(lockstep("--help").stdout.split())


def test_version_is_that_of_the_installed_package() -> None:
    done = lockstep("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lockstep {package.__version__}\n", "")


def test_version_of_what_is_not_installed() -> None:
    code = """
import importlib.metadata as m, sys
def version(name):
    raise m.PackageNotFoundError(name)
m.version = version
sys.argv = ["lockstep", "--version"]
from lockstep.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lockstep: it is not installed here: expected the metadata that pip writes\n"


def test_python_m_is_the_command(tmp_path: Path) -> None:
    for arguments, code in ((["--version"], 0), (["verify", str(tmp_path)], 2)):
        argv = [sys.executable, "-m", "lockstep", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert (done.returncode, (done.stdout or done.stderr).partition(" ")[0].rstrip(":")) == (
            code,
            "lockstep",
        )
