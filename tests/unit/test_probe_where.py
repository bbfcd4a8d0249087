"""What the main thread of a process is parked in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
