"""However a search is ended, the run in the release's environment ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SLEEPS = (
    "import os, pathlib, signal, sys, time; "
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(1))); "
    "pathlib.Path('child').write_text(str(os.getpid())); time.sleep(600)"
)
"""Takes a second to end, as what has processes of its own does."""
SEARCH = f"""
from pathlib import Path
from lockstep.bisect import command, environment, probe
from lockstep.bisect.probe import Question
python = Path("python")
python.write_text('''#!/bin/sh\\nexec {sys.executable} -c "{SLEEPS}"\\n''')
python.chmod(0o700)
environment.build = lambda *args: environment.Environment(python.resolve(), {{}}, {{}})
command.probe_release(Question("ms-swift"), "4.2.0", None, Path("out"), fixed=False)
"""
FOLLOWS = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", "import sys; from lockstep.experiments.bisect.worker import _end_with_parent; "
    "_end_with_parent(int(sys.argv[1])); {SLEEPS}", str(__import__("os").getpid())])
"""


def started(folder: Path, code: str) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """The search, and the process that it runs."""
    (folder / "constraints").mkdir()
    (folder / "constraints" / "cpu.txt").touch()
    search = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not (told := folder / "child").exists() or not told.read_text():
        assert search.poll() is None, search.communicate()[1].decode()
        assert time.monotonic() < until
        time.sleep(0.05)
    return search, psutil.Process(int(told.read_text()))


@pytest.mark.parametrize(
    ("code", "number"),
    [(SEARCH, signal.SIGTERM), (SEARCH, signal.SIGHUP), (SEARCH, signal.SIGINT), (FOLLOWS, signal.SIGKILL)],
)
def test_nothing_is_left(tmp_path: Path, code: str, number: signal.Signals) -> None:
    search, child = started(tmp_path, code)
    os.kill(search.pid, number)
    search.wait(30)
    # Whoever catches the signal waits; of one that is killed the kernel tells, which takes a moment.
    gone, alive = psutil.wait_procs([child], timeout=30 if number is signal.SIGKILL else 0)
    for process in alive:
        process.kill()
    assert (len(gone), alive) == (1, [])
    if number in (signal.SIGTERM, signal.SIGHUP):
        assert search.returncode == 128 + number


def test_one_whose_search_was_gone_before_it_began_does_nothing(tmp_path: Path) -> None:
    code = "from lockstep.experiments.bisect.worker import _end_with_parent; _end_with_parent(1 << 22); print('ran')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, b"")
