"""What is worth keeping of a job that stopped: stacks of all its processes, the recorders' entries, the line
that explains it."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lockstep.run.process_tree import ProcessInfo, ProcessTree

STACK_S = 10.0
"""Longest time for one process's stack."""
FLIGHT_S = 4.0
"""Longest wait for the probes to write their recorders' entries."""

_ERROR = re.compile(
    r"^(?:\(\w+ pid=\d+\) )?(?:ERROR [\d-]+ [\d:]+ \[\S+\] )?(?:\[rank\d+\]: )?"
    r"((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*)$"
)
"""A traceback's last line, with what vLLM and torch put before it."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TORCHRUN = re.compile(
    r"failed \(exitcode: (?P<status>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)"
)
"""What torchrun logs when a rank fails (torch 2.8.0, `torch/distributed/elastic/multiprocessing/api.py`)."""
_ECHO = ("ChildFailedError", "KeyboardInterrupt", "BrokenPipeError", "CancelledError")
"""What is raised because something else failed, or was ended."""


def collect(tree: ProcessTree, run_dir: Path) -> None:
    """Saves stacks (py-spy, if installed) and asks the probes for their flight recorders' entries, in
    `run_dir/evidence`.

    Comes after the verdict and does not change it; what cannot be had, or written, is left out.
    """
    folder = run_dir / "evidence"
    with contextlib.suppress(OSError):
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
        with contextlib.suppress(OSError):
            (folder / f"{process.command}-{process.pid}.stack.txt").write_text(done.stdout)


def own_log(logs: Path, label: str) -> Path:
    """The log of the process with that label (`rollout engine core 1`), as the probe names it."""
    side, _, rest = label.partition(" ")
    role, _, rank = rest.rpartition(" ")
    return logs / f"{side}-{role.replace(' ', '_')}-{rank}.log"


def last_error(logs: Path, side: str) -> str:
    """The exception that best explains why a side failed, with its file and line; the last line of its log if
    there is none.

    Of several processes the one counts that torchrun saw fail first, or that fell silent first: the others
    fail because it did.
    """
    common = logs / f"{side}.log"
    lines = _lines(common)
    if failed := next((match for line in lines if (match := _TORCHRUN.search(line))), None):
        log = logs / f"{side}-rank-{failed['rank']}.log"
        how = f"rank {failed['rank']} (pid {failed['pid']}) ended with status {failed['status']}"
        if not log.exists():  # it failed before it had one of its own
            log = common
        return f"{how}: {error_in(log) or f'its log is {log}'}"
    own = sorted(logs.glob(f"{side}-*.log"), key=lambda path: path.stat().st_mtime)
    for log in (*own, common):
        if found := error_in(log):
            return found
    return f"{lines[-1][:300] if lines else 'it wrote nothing'} ({common}:{len(lines)})"


def error_in(log: Path) -> str:
    """The last exception in a log that is not an echo of another one's, with file and line; empty if there is
    none."""
    for number, line in reversed(list(enumerate(_lines(log), 1))):
        match = _ERROR.match(line)
        if match and not any(echo in match[1].partition(":")[0] for echo in _ECHO):
            return f"{match[1][:300]} ({log}:{number})"
    return ""


def _lines(log: Path) -> list[str]:
    """Without colours: vLLM puts them around what it prints before a line."""
    try:
        return _COLOUR.sub("", log.read_text(errors="replace")).splitlines()
    except OSError:
        return []
