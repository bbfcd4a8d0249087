"""The runner's handle of one command and its warden. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

import lockstep
from lockstep.env import RUN_ID, TREE
from lockstep.run.shm import SharedMemory
from lockstep.run.shutdown import KILL_S, end_all, marked

_START_S = 60.0
_MARGIN_S = 10.0


class ProcessTreeError(RuntimeError):
    """The processes of the job cannot be supervised as asked."""


class StartError(ProcessTreeError):
    """A command did not start; names the command, its log and the reason."""


class WardenLostError(ProcessTreeError):
    """The warden of a command was killed by someone else; the command was ended for that."""


class Command:
    """One command of a `ProcessTree`, which makes these."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.pid = 0
        """Process id of the command; 0 until it has started."""
        self.ended = False
        """Whether the command's whole tree has been ended."""
        self.shared_memory: dict[str, int] = {}
        """Files that its processes were seen to hold under /dev/shm, with their inodes."""
        self._token = uuid.uuid4().hex
        self._status: int | None = None
        self._lost: str | None = None
        self._failed: str | None = None
        self._left: list[str] = []
        self._known: set[psutil.Process] = set()
        self._baseline: dict[str, int] = {}
        self._warden: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._grace_s = 0.0

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        run_id: str,
        grace_s: float,
        baseline: dict[str, int],
    ) -> None:
        """Start the warden, which starts the command. Raises StartError."""
        if not argv:
            raise StartError(f"command {self.name!r} is empty")
        self._baseline = baseline
        self._grace_s = grace_s
        try:
            self.log.absolute().parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"{self._title(argv)} did not start: {error}") from error
        environment = dict(os.environ if env is None else env)
        environment |= {TREE: self._token, RUN_ID: run_id}
        # A program that sets its title writes it over the environment in /proc, and so over the marker.
        # With this variable setproctitle keeps to the space of the arguments.
        environment.setdefault("SPT_NOENV", "1")
        spec = {
            "argv": list(argv),
            "env": environment,
            "cwd": str((cwd or Path.cwd()).absolute()),
            "log": str(self.log.absolute()),
            "grace_s": grace_s,
            "runner": os.getpid(),
            "token": self._token,
            "shm": baseline,
        }
        self._start_warden(json.dumps(spec))
        deadline = time.monotonic() + _START_S
        while not (self.pid or self._failed or self._lost) and time.monotonic() < deadline:
            self._receive(0.5)
        if self.pid:
            return
        reason = self._failed or self._lost or f"its warden did not answer in {_START_S:.0f} s"
        self.request_end(0.0)
        self.await_end()
        raise StartError(f"{self._title(argv)} did not start: {reason}")

    def poll(self) -> int | None:
        """Exit status of the command itself (negative: ended by that signal); None while it runs.

        Its descendants may live on.

        Raises:
            WardenLostError: Someone killed the warden. The command's processes have been ended.
        """
        self._receive(0.0)
        if self._lost is not None and not self.ended:
            self.await_end()
            raise WardenLostError(f"command {self.name!r} was ended: {self._lost}")
        return self._status

    def descendants(self) -> list[psutil.Process]:
        """The command's live processes, itself included."""
        if self._warden is None or self.ended:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self._warden.pid).children(recursive=True)
            self._known = set(found)
            return found
        return []

    def left_processes(self) -> list[str]:
        """What the warden could not end."""
        return list(self._left)

    def request_end(self, grace_s: float) -> None:
        """Have the warden end everything; a second request ends the grace of the first. Does not wait."""
        self._grace_s = grace_s
        if self._channel is None:
            return
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps({"end": grace_s}).encode())
        if self._warden is not None:
            self._warden.send_signal(signal.SIGCONT)  # in case someone stopped it

    def await_end(self) -> list[psutil.Process]:
        """Wait until everything has ended; returns what not even the runner itself could end.

        Can be called again after an interrupt.
        """
        if self._channel is None:
            self.ended = True
            return []
        deadline = time.monotonic() + self._grace_s + KILL_S + _MARGIN_S
        while not (self.ended or self._failed or self._lost) and time.monotonic() < deadline:
            self._receive(0.5)
        left: list[psutil.Process] = []
        if not (self.ended or self._failed):
            left = self._end_without_warden()
        self.ended = True
        self._kill_warden()
        self._channel.close()
        self._channel = None
        return left

    def _start_warden(self, spec: str) -> None:
        package = str(Path(lockstep.__file__).parents[1])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Not by the command line, which all may read and which is short; not by a pipe, which fills up.
        with theirs, os.fdopen(os.memfd_create("lockstep-spec"), "w+", encoding="utf-8") as file:
            file.write(spec)
            file.seek(0)
            self._channel = ours
            self._warden = subprocess.Popen(
                [sys.executable, "-m", "lockstep.run.reaper", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": path},
                cwd="/",
                stdin=file,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def _receive(self, timeout_s: float) -> None:
        """Take in the warden's messages: all that are there, or wait for one."""
        while self._channel is not None and select.select([self._channel], [], [], timeout_s)[0]:
            try:
                data = self._channel.recv(65536)
            except ConnectionResetError:  # it died with a message from here unread
                data = b""
            if not data:
                if not (self.ended or self._failed):
                    self._lost = "its warden was killed"
                return
            message = json.loads(data)
            self.pid = message.get("started", self.pid)
            self._failed = message.get("failed", self._failed)
            self._status = message.get("exited", self._status)
            if "shm" in message:
                path, inode = message["shm"]
                self.shared_memory[path] = inode
            if "ended" in message:
                self._left = message["ended"]
                self.ended = True
            timeout_s = 0.0

    def _end_without_warden(self) -> list[psutil.Process]:
        self._kill_warden()  # it may hang; the command itself dies with it
        memory = SharedMemory(self._baseline)
        memory.owned.update(self.shared_memory)

        def find() -> list[psutil.Process]:
            found = {*marked(self._token), *self._known}
            for process in list(found):
                with contextlib.suppress(psutil.Error):
                    found.update(process.children(recursive=True))
            return [process for process in found if _lives(process)]

        def watch(processes: list[psutil.Process]) -> None:
            memory.observe(lambda: [process.pid for process in processes], thorough=True)

        left = end_all(find, self._grace_s, watch=watch)
        self.shared_memory.update(memory.owned)
        memory.remove()
        return left

    def _kill_warden(self) -> None:
        if self._warden is not None:  # an interrupt can come between its start and the assignment
            self._warden.kill()
            self._warden.wait()

    def _title(self, argv: Sequence[str]) -> str:
        return f"command {self.name!r} ({argv[0]}, log {self.log})"


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
