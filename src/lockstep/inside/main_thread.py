"""What the main thread is doing, seen from another thread and without stopping it."""

from __future__ import annotations

import os
import platform
import stat
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import FrameType

DEPTH = 8

_SYSCALLS = {
    "x86_64": {
        "sleep": (35, 230),
        "futex": (202,),
        "poll": (7, 271),
        "select": (23, 270),
        "epoll": (232, 281),
        "read": (0, 17, 19),
        "write": (1, 18, 20),
        "receive": (45, 47, 299),
        "send": (44, 46, 307),
        "accept": (43, 288),
        "wait": (61, 247),
        "file": (2, 4, 5, 6, 73, 74, 75, 82, 87, 257, 262, 332),
    },
    "aarch64": {
        "sleep": (101, 115),
        "futex": (98,),
        "poll": (73,),
        "select": (72,),
        "epoll": (22,),
        "read": (63, 65, 67),
        "write": (64, 66, 68),
        "receive": (207, 212, 243),
        "send": (206, 211, 269),
        "accept": (202, 242),
        "wait": (95, 260),
        "file": (32, 35, 38, 56, 79, 80, 82, 83, 276, 291),
    },
}
"""Linux system call numbers by what they wait for (`asm/unistd_64.h`, `asm-generic/unistd.h`).

`file` are those that work on files alone: open, stat, rename, unlink, flock, fsync.
"""
_READS_AND_WRITES = {
    "x86_64": (0, 1, 17, 18, 19, 20),
    "aarch64": (63, 64, 65, 66, 67, 68),
}.get(platform.machine(), ())

_NAMES = {n: name for name, numbers in _SYSCALLS.get(platform.machine(), {}).items() for n in numbers}
_STDLIB = sysconfig.get_path("stdlib") + os.sep
_PROBE = f"{Path(__file__).parent}{os.sep}"
_OWN = f"{Path(__file__).parents[2]}{os.sep}"
_SITE = f"{os.sep}site-packages{os.sep}"
_TORCH = f"{_SITE}torch{os.sep}"
_COLLECTIVES = f"{_TORCH}distributed{os.sep}distributed_c10d.py"
_POINT_TO_POINT = frozenset(
    {"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"}
)


_WAITS = frozenset({"futex", "read", "write", "receive", "send", "poll", "select", "epoll", "accept", "wait"})
_MEANS = {
    "queue.py": "queue",
    "multiprocessing/queues.py": "queue",
    "multiprocessing/connection.py": "pipe",
    "multiprocessing/synchronize.py": "lock",
    "multiprocessing/popen_fork.py": "process",
    "threading.py": "lock",
    "concurrent/futures/_base.py": "future",
    "subprocess.py": "process",
    "socket.py": "socket",
    "ssl.py": "socket",
    "http/client.py": "socket",
}
"""What code waits for that has called this file of the standard library."""
_C10D = f"{_TORCH}distributed{os.sep}"


class MainThread:
    """Stack, CPU time and blocking system call of the process's main thread."""

    def __init__(self) -> None:
        main = threading.main_thread()
        self._ident = main.ident or 0
        self._syscall = f"/proc/self/task/{main.native_id}/syscall"
        self._schedule = f"/proc/self/task/{main.native_id}/schedstat"
        self._clock = time.pthread_getcpuclockid(self._ident)

    def cpu_s(self) -> float:
        return time.clock_gettime(self._clock)

    def queued_s(self) -> float | None:
        """Seconds that it has been ready to run and had to wait for a core; None if the kernel does not tell.

        Source: Linux, `Documentation/scheduler/sched-stats.rst`, the second number of `schedstat`, in
        nanoseconds.
        """
        try:
            with open(self._schedule) as f:  # noqa: PTH123
                return round(int(f.read(64).split()[1]) / 1e9, 3)
        except (OSError, ValueError, IndexError):
            return None

    def park(self) -> str | None:
        """Name of the system call that it is blocked in; None when it runs or the kernel does not tell.

        Reading or writing a regular file is `file`, a pipe or a socket is not.
        """
        return self._blocked_in()[0]

    def _blocked_in(self) -> tuple[str | None, int]:
        """The system call's name, and the mode of the file that it reads or writes, 0 where there is none."""
        try:
            with open(self._syscall) as f:  # noqa: PTH123  (pathlib is slower, and this runs every second)
                number, *arguments = f.read(64).split()
            if not number.isdigit():
                return None, 0
            name = _NAMES.get(int(number), number)
            if name == "select" and int(arguments[0], 16) == 0:
                return "sleep", 0  # of no file: so `time.sleep` sleeps before Python 3.11
            if int(number) not in _READS_AND_WRITES and name not in ("receive", "send", "accept"):
                return name, 0
            mode = os.fstat(int(arguments[0], 16)).st_mode
            return ("file" if stat.S_ISREG(mode) else name), mode
        except (OSError, ValueError, IndexError):
            return None, 0

    def blocked(self) -> str | None:
        """What the main thread waits for other than its peers: `lock`, `queue`, `pipe`, `socket`, `process`
        or `future`. None when it runs, or is inside of torch or of its communication, or it is not known.
        """
        park, mode = self._blocked_in()
        frame = sys._current_frames().get(self._ident)
        if park not in _WAITS or frame is None or _TORCH in frame.f_code.co_filename:
            return None
        means = {"futex": "lock", "wait": "process"}.get(park)
        if stat.S_ISFIFO(mode):
            means = "pipe"
        elif stat.S_ISSOCK(mode):
            means = "socket"
        library = True
        while frame is not None:
            path = frame.f_code.co_filename
            if _C10D in path:
                return None
            library = library and path.startswith(_STDLIB) and _SITE not in path
            if library:
                means = _MEANS.get(path.removeprefix(_STDLIB), means)
            frame = frame.f_back
        return means

    def stack(self) -> list[str]:
        """`path:line function`, innermost first, without frames of torch and of the standard library."""
        frame = sys._current_frames().get(self._ident)
        frames: list[str] = []
        plain: list[str] = []
        while frame is not None and len(frames) < DEPTH:
            name = describe(frame)
            (plain if _is_plumbing(frame) else frames).append(name)
            frame = frame.f_back
        return frames or plain[:DEPTH]

    def line(self) -> str:
        """`path:line` of its innermost frame, without those of torch and of the standard library."""
        frame = sys._current_frames().get(self._ident)
        while frame is not None and _is_plumbing(frame):
            frame = frame.f_back
        return "" if frame is None else f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def issuing_line() -> str:
    """`path:line` of the code whose thread is inside a collective of torch.distributed now; empty if there is
    none.

    Sends and receives are no collectives.
    """
    for frame in sys._current_frames().values():
        inside = False
        walk: FrameType | None = frame
        while walk is not None:
            if _COLLECTIVES in walk.f_code.co_filename:
                if walk.f_code.co_name in _POINT_TO_POINT:
                    break
                inside = True
            elif inside and not _is_plumbing(walk):
                return f"{short_path(walk.f_code.co_filename)}:{walk.f_lineno}"
            walk = walk.f_back
    return ""


def calling_line() -> str:
    """`path:line` of the innermost code of this thread that is not the probe's."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PROBE):
        frame = frame.f_back
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def describe(frame: FrameType) -> str:
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"


def short_path(path: str) -> str:
    """A path as people write it: `torch/autograd/graph.py`, whatever the environment's folder is called."""
    _, site, inside = path.rpartition(_SITE)
    return inside if site else path.removeprefix(_STDLIB).removeprefix(_OWN)


def _is_plumbing(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return _TORCH in path or path.startswith("<frozen") or (path.startswith(_STDLIB) and _SITE not in path)
