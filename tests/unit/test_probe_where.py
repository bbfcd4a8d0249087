"""What the main thread of a process is parked in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lockstep.inside import hooks
from lockstep.inside import main_thread as where
from lockstep.inside.counters import Counted
from lockstep.inside.group_names import Group

SCRIPT = """
import fcntl, os, sys, threading, time
from lockstep.probe.where import MainThread

def look():
    time.sleep(0.3)
    print(main.park(), flush=True)
    os._exit(0)

main = MainThread()
threading.Thread(target=look).start()
exec(sys.argv[1])
"""


def test_lines_are_told_without_the_folders_of_packages() -> None:
    assert where.short_path("/any/lib/python3/site-packages/vllm/x.py") == "vllm/x.py"
    assert where.short_path(where.__file__) == "lockstep/inside/main_thread.py"
    assert where.short_path("/home/user/train.py") == "/home/user/train.py"


def test_a_wrapped_call_is_issued_by_its_caller_and_not_by_the_wrapper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = Counted(Group("weight-sync", "", "gloo", (0, 1), 0))
    around = eval(  # as if it stood in the probe
        compile("lambda original: counter.call('barrier', '', None, original)", hooks.__file__, "eval"),
        {"counter": counter},
    )
    holder = ModuleType("holder")
    holder.barrier = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holder", holder)
    hooks.wrap("holder:barrier", around)
    holder.barrier()  # here
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# here" in text)
    assert counter.at == f"{__file__}:{line}"
    assert (counter.issued, counter.completed) == (1, 1)


STARVED = """
import hashlib, os, threading
from lockstep.probe.where import MainThread

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
main = MainThread()
before = main.queued_s(), main.cpu_s()
others = [threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 10**6)) for _ in range(2)]
for other in others:
    other.start()
hashlib.pbkdf2_hmac("sha256", b"", b"", 3 * 10**5)
print(main.queued_s() - before[0], main.cpu_s() - before[1])
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no such numbers")
def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60)
    queued, ran = map(float, done.stdout.split())
    assert queued > 0.5 * ran > 0.0


@pytest.mark.parametrize(
    ("body", "parked"),
    [
        ("a, b = open(sys.argv[2], 'w'), open(sys.argv[2]); fcntl.flock(a, 2); fcntl.flock(b, 2)", "file"),
        ("time.sleep(9)", "sleep"),
        ("r, w = os.pipe(); os.read(r, 1)", "read"),
        ("import socket; a, b = socket.socketpair(); a.recv(1)", "receive"),
        ("threading.Lock().acquire(); l = threading.Lock(); l.acquire(); l.acquire()", "futex"),
        # Runs without the lock of the interpreter: Python code would be seen waiting for the one that looks.
        ("import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", "None"),
    ],
)
def test_park(tmp_path: Path, body: str, parked: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, body, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.strip() == parked, done.stderr
