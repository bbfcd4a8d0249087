"""What leaves the host: redacted, bounded, and only what it should."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import fake_smi
import pytest

from lockstep.ci.collect import Collector, main
from lockstep.ci.redact import Redactor

ROOT = Path(__file__).parents[2]
HOME = Path("/home/alice")
ENV = {
    "WANDB_API_KEY": "0123456789abcdef0123",
    "HF_TOKEN": "true",
    "PATH": "/usr/bin:/secret-looking/but/not",
}


def redactor() -> Redactor:
    return Redactor(ENV, HOME, HOME / "lockstep")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("key is 0123456789abcdef0123.", "key is [hidden]."),
        ("/home/alice/lockstep/src/a.py /home/alice/.cache", "./src/a.py ~/.cache"),
        ("clone https://alice:pa55word@host/x", "clone https://[hidden]@host/x"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [hidden]"),
        ("use hf_abcdefghijklmnopqrstuvwx now", "use [hidden] now"),
        ("ghp_0123456789012345678901234567890123ab", "[hidden]"),
        ('{"api_key": "s3cr3ts3cr3t", "x": 1}', '{"api_key": "[hidden]", "x": 1}'),
        ("MY_PASSWORD=hunter2hunter2 cmd", "MY_PASSWORD=[hidden] cmd"),
        ("tokenizer: Qwen2Tokenizer, 128 tokens = 12 s", "tokenizer: Qwen2Tokenizer, 128 tokens = 12 s"),
        ("true PATH=/usr/bin", "true PATH=/usr/bin"),
    ],
)
def test_redaction_of_text(given: str, expected: str) -> None:
    assert redactor().text(given.encode()).decode() == expected


def test_redaction_does_not_break_a_dump() -> None:
    dump = {"frames": [{"filename": "/home/alice/lockstep/a.py", "name": "0123456789abcdef0123"}], "n": 2**40}
    data = redactor().binary(pickle.dumps(dump, protocol=2))
    assert b"alice" not in data
    loaded = pickle.loads(data)
    assert loaded["n"] == 2**40
    assert loaded["frames"][0]["filename"].endswith("/a.py")
    assert "0123456789" not in loaded["frames"][0]["name"]


def runs(folder: Path) -> Path:
    """Two runs, of which the older one must stay where it is."""
    for stamp, mark in (("20260101-000000", "old"), ("20260102-000000", "new")):
        arm = folder / stamp / "control"
        for room in ("ledgers", "logs", "evidence", "output/checkpoint-4"):
            (arm / room).mkdir(parents=True)
        (arm / "ledgers" / "trainer-rank-0.jsonl").write_text(f'{{"k": "{mark}"}}\n')
        (arm / "logs" / "trainer.log").write_text("in /home/alice/lockstep\n" + "a line\n" * 2000)
        (arm / "evidence" / "rollout-nccl-rank-0").write_bytes(
            pickle.dumps({"at": "/home/alice/lockstep/a.py"}, protocol=2)
        )
        (arm / "evidence" / "link").symlink_to("/etc/passwd")
        (arm / "output" / "checkpoint-4" / "model.safetensors").write_bytes(b"weights")
        (arm / "trainer.command.json").write_text("{}")
    (folder / "summary.json").write_text("[]")
    return folder


def collected(tmp_path: Path, file_bytes: int = 1 << 20, total: int = 1 << 20) -> dict[str, bytes]:
    to = tmp_path / "to"
    Collector(to, redactor(), file_bytes, total).run(
        runs(tmp_path / "runs"), [("gone.txt", ["no-such-program"])]
    )
    return {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()}


def test_the_newest_run_without_checkpoints_and_links(tmp_path: Path) -> None:
    found = collected(tmp_path)
    assert set(found) == {
        "MANIFEST.txt", "gone.txt", "summary.json", "control/trainer.command.json",
        "control/ledgers/trainer-rank-0.jsonl", "control/logs/trainer.log",
        "control/evidence/rollout-nccl-rank-0",
    }  # fmt: skip
    assert b'"new"' in found["control/ledgers/trainer-rank-0.jsonl"]
    assert found["control/logs/trainer.log"].startswith(b"in .\n")
    assert found["gone.txt"] == b"no-such-program is not there\n"
    assert all(b"alice" not in data for data in found.values())


def test_a_large_file_keeps_begin_and_end(tmp_path: Path) -> None:
    log = collected(tmp_path, file_bytes=1000)["control/logs/trainer.log"]
    assert len(log) <= 1040
    lines = log.decode().splitlines()
    assert lines[0] == "in ."
    assert lines[-1] == "a line"
    assert sum("bytes left out here]" in line for line in lines) == 1
    assert set(lines[1:]) - {"a line"} == {line for line in lines if "left out" in line}


def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    found = collected(tmp_path, total=5000)
    assert "control/logs/trainer.log" not in found
    assert "control/ledgers/trainer-rank-0.jsonl" in found
    assert b"control/logs/trainer.log: left out: " in found["MANIFEST.txt"]


def test_the_script(tmp_path: Path) -> None:
    env = (
        os.environ
        | fake_smi.install(tmp_path / "bin", 8)
        | {"LOCKSTEP_RUNS": str(runs(tmp_path / "runs")), "PYTHON": sys.executable}
    )
    command = [str(ROOT / "ci" / "collect.sh"), str(tmp_path / "to")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "NVIDIA-SMI 570" in (tmp_path / "to" / "nvidia-smi.txt").read_text()
    assert "pytest==" in (tmp_path / "to" / "versions.txt").read_text()
    again = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 2
    assert "expected a new or an empty folder" in again.stderr


def test_nothing_to_collect_is_no_error(tmp_path: Path) -> None:
    Collector(tmp_path / "to", redactor()).run(tmp_path / "nothing", [])
    assert (tmp_path / "to" / "MANIFEST.txt").read_text() == "\n"


def test_runs_that_are_no_folder_are_an_error_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("a file")
    assert main([str(tmp_path / "runs"), str(tmp_path / "to")]) == 2
    assert capsys.readouterr().err.endswith("runs: Not a directory\n")
