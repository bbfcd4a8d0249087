"""How every command ends where something goes wrong: never with 1, which is a verdict, for what is none."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ledgers import Job, incident

from lockstep.cli import app

DATA = Path(__file__).parents[1] / "data"
ROOMS = {
    "verify": ("lockstep.record", ["."]),
    "run": ("lockstep.experiments.stress.session", []),
    "audit": ("lockstep.audit", ["script.sh"]),
    "diagnose": ("lockstep.diagnose", ["job.log"]),
    "faults": ("lockstep.experiments.faults.command", []),
    "remedies": ("lockstep.experiments.remedies.command", []),
    "soak": ("lockstep.experiments.soak", ["--stress-minutes", "1"]),
    "dumps": ("lockstep.dumps", ["."]),
    "bisect": ("lockstep.experiments.bisect", ["--bad", "3.10.3"]),
    "probe-release": ("lockstep.experiments.bisect", ["3.10.3"]),
    "remedy": ("lockstep.remedies.command", []),
    "gpu-check": ("lockstep.gpu_check", []),
}
"""The package that a command loads first, and arguments that it takes."""
FAILS = """
import sys
class Fails:
    def find_spec(self, name, path=None, target=None):
        if name == {room!r}:
            {what}
sys.meta_path.insert(0, Fails())
sys.argv[0] = "lockstep"
from lockstep.cli import main
main()
"""


def lockstep(*arguments: str | Path, before: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c" if before else "-m", before or "lockstep", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60, **options}
    return subprocess.run(argv, check=False, **options)


def wrong(command: str) -> int:
    return 128 if command == "probe-release" else 2


@pytest.fixture
def told(tmp_path: Path) -> dict[str, tuple[list[str], int]]:
    """Commands that say much, with the exit code that they have."""
    Job(incident(1)).write(tmp_path / "job")
    return {
        "verify": (["verify", str(tmp_path / "job")], 1),
        "verify --json": (["verify", str(tmp_path / "job"), "--json"], 1),
        "audit": (["audit", str(DATA / "scripts" / "launch.sh")], 1),
        "audit --json": (["audit", str(DATA / "scripts" / "launch.sh"), "--json"], 1),
        "audit --fix": (["audit", str(DATA / "scripts" / "launch.sh"), "--fix"], 1),
        "diagnose": (["diagnose", str(DATA / "logs" / "incident.log")], 0),
        "dumps": (["dumps", str(DATA / "dumps" / "gloo-torch-2.8")], 1),
        "run --dry-run": (["run", "--dry-run", "--out", str(tmp_path / "out")], 0),
        "help": (["--help"], 0),
    }


def test_every_command_is_tried_here() -> None:
    names = {info.name or info.callback.__name__ for info in app.registered_commands if info.callback}
    assert names == set(ROOMS)


@pytest.mark.parametrize("command", ROOMS)
def test_an_error_that_nobody_foresaw_has_a_code_of_its_own(command: str) -> None:
    room, arguments = ROOMS[command]
    code = FAILS.format(room=room, what="raise ZeroDivisionError('a line\\nand another')")
    done = lockstep(command, *arguments, before=code)
    assert done.returncode == (128 if command == "probe-release" else 70)
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    last = done.stderr.splitlines()[-1]
    assert "an error that nobody foresaw (ZeroDivisionError: a line\\nand another)" in last
    assert "Please report it" in last
    assert done.stdout == ""


@pytest.mark.parametrize(
    "what",
    [
        "raise RecursionError",
        "raise MemoryError",
        "raise EOFError('a file that ended too soon')",
        "raise BrokenPipeError(32, 'a socket')",
        "raise OSError(5, 'without a file')",
        "raise UnicodeEncodeError('ascii', 'x', 0, 1, 'y')",
        "(lambda f: f(f))(lambda f: f(f))",
    ],
)
def test_of_whatever_kind_it_is(what: str) -> None:
    done = lockstep("verify", ".", before=FAILS.format(room="lockstep.record", what=what))
    assert done.returncode == 70
    assert "an error that nobody foresaw" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ROOMS)
def test_a_file_that_cannot_be_used_is_a_sentence(command: str) -> None:
    """Wherever in a command it is met."""
    room, arguments = ROOMS[command]
    code = FAILS.format(room=room, what="raise PermissionError(13, 'Permission denied', '/there/it is')")
    done = lockstep(command, *arguments, before=code)
    assert (done.returncode, done.stdout) == (wrong(command), "")
    assert done.stderr == "lockstep: /there/it is: Permission denied\n"


@pytest.mark.parametrize("command", ["", *ROOMS])
def test_wrong_usage_is_a_sentence(command: str) -> None:
    done = lockstep(*filter(None, [command]), "--no-such\n\x1b[2Joption")
    assert (done.returncode, done.stdout) == (wrong(command), "")
    where = f"lockstep {command}".strip()
    assert re.fullmatch(
        rf"lockstep: No such option: '?--no-such\\(n|x0a)\\x1b\[2Joption'?\. See `{where} --help`\n",
        done.stderr,
    )


def test_what_root_may_not_read_either_is_named(tmp_path: Path) -> None:
    """Without the right to read everything, root is a user like any other."""
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("needs setpriv, or a user who is not root")
    job = Job(incident(1)).write(tmp_path / "job")
    files = {
        "verify": next(job.rglob("*.jsonl")),
        "audit": tmp_path / "script.sh",
        "diagnose": tmp_path / "job.log",
        "dumps": tmp_path / "dumps" / "nccl_trace_rank_0",
    }
    for command, path in files.items():
        path.parent.mkdir(exist_ok=True)
        path.touch()
        path.chmod(0)
        given = job if command == "verify" else path.parent if command == "dumps" else path
        argv = [sys.executable, "-m", "lockstep", command, str(given)]
        if os.getuid() == 0:
            argv = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *argv]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert done.stderr.startswith("lockstep: ")
        assert path.name in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_full_output_device_is_a_sentence(told: dict[str, tuple[list[str], int]]) -> None:
    with Path("/dev/full").open("w") as full:
        for name, (arguments, _) in told.items():
            done = lockstep(*arguments, stdout=full)
            assert done.returncode == 2, name
            assert done.stderr == "lockstep: standard output cannot be written: No space left on device\n"
        assert lockstep("probe-release", "--help", stdout=full).returncode == 128


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_has_gone_does_not_change_the_exit_code(
    told: dict[str, tuple[list[str], int]], buffered: bool
) -> None:
    environment = os.environ | ({} if buffered else {"PYTHONUNBUFFERED": "1"})
    for name, (arguments, code) in told.items():
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            done = lockstep(*arguments, stdout=pipe, env=environment)
        assert (done.returncode, [line for line in done.stderr.splitlines() if "fix" not in name]) == (
            code,
            [],
        ), name


def test_standard_error_that_cannot_be_written_is_overlooked(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        assert lockstep("verify", tmp_path, stderr=full).returncode == 2
        code = FAILS.format(room="lockstep.record", what="raise KeyError")
        assert lockstep("verify", tmp_path, before=code, stderr=full).returncode == 70


def closed(how: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["sh", "-c", f'exec "$@" {how}', "sh", sys.executable, "-m", "lockstep", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_streams_that_are_closed(told: dict[str, tuple[list[str], int]]) -> None:
    arguments, code = told["verify"]
    done = closed(">&-", *arguments)
    assert done.returncode == 2
    assert done.stderr == "lockstep: standard output is closed: expected a place to print to\n"
    done = closed("2>&-", *arguments)
    assert (done.returncode, done.stdout.partition(" ")[0]) == (code, "stuck")
    assert closed("2>&-", "verify", "/nowhere").returncode == 2
    assert closed(">&- 2>&- <&-", *arguments).returncode == 2
    assert closed("<&-", *arguments).returncode == code
    done = closed("<&-", "diagnose", "-")
    assert done.returncode == 2
    assert done.stderr == "lockstep: standard input is closed: expected a log on it\n"
    assert closed(">&-", "probe-release", "--help").returncode == 128


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_the_characters_gets_others(tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "проба–日本.log"
    shutil.copy(DATA / "logs" / "incident.log", log)
    script = tmp_path / "проба–日本.sh"
    script.write_text((DATA / "scripts" / "launch.sh").read_text() + "# проба\n--日本–é\n")
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    for arguments, code in ((["diagnose", log], 0), (["audit", script], 1), (["verify", log], 2)):
        done = lockstep(*arguments, env=environment, text=False, encoding=encoding)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


def test_ctrl_c_is_no_verdict() -> None:
    argv = [sys.executable, "-m", "lockstep", "diagnose", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(b"x\n" * 100_000)  # more than a pipe holds: it reads
        process.stdin.flush()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
