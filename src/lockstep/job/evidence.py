"""What is worth keeping of a job that stopped: stacks of all its processes, the recorders' entries, the line that explains it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lockstep.job.processes import ProcessInfo, ProcessTree

STACK_S = 10.0
"""Longest time for one process's stack."""
FLIGHT_S = 4.0
"""Longest wait for the probes to write their recorders' entries."""

_ERROR = re.compile(r"^\s*(?:\S+ )?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)$")


def collect(tree: ProcessTree, run_dir: Path) -> None:
    """Saves stacks (py-spy, if installed) and asks the probes for their flight recorders' entries, in `run_dir/evidence`.

    Comes after the verdict and does not change it; what cannot be had is left out.
    """
    folder = run_dir / "evidence"
    (folder / "wanted").touch()
    py_spy = shutil.which("py-spy") or _beside_python("py-spy")
    if py_spy:
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda process: _stack(py_spy, process, folder), tree.pids()))
    until = time.monotonic() + FLIGHT_S
    expected = len(list((run_dir / "ledgers").glob("*.jsonl")))
    while time.monotonic() < until and len(list(folder.glob("*.flight.json"))) < expected:
        time.sleep(0.2)


def _beside_python(tool: str) -> str | None:
    import sys

    path = Path(sys.executable).with_name(tool)
    return str(path) if path.exists() else None


def _stack(py_spy: str, process: ProcessInfo, folder: Path) -> None:
    try:
        # --nonblocking: a process that is looked at must not be stopped for it.
        done = subprocess.run(
            [py_spy, "dump", "--nonblocking", "--pid", str(process.pid)],
            capture_output=True,
            text=True,
            timeout=STACK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.stdout:
        (folder / f"{process.command}-{process.pid}.stack.txt").write_text(done.stdout)


def last_error(logs: Path, side: str) -> str:
    """The last line of a side's logs that looks like an exception, with its file and line; or the last line of the log."""
    last = ""
    for log in sorted(logs.glob(f"{side}*.log"), key=lambda path: path.stat().st_mtime):
        lines = log.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if match := _ERROR.match(line):
                last = f"{match[1][:300]} ({log}:{number})"
    if last:
        return last
    log = logs / f"{side}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return f"{lines[-1][:300] if lines else 'it wrote nothing'} ({log}:{len(lines)})"
