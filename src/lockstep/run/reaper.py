"""The parent of one command of the job: outlives the runner just to end all that the command started.

    python -m lockstep.run.reaper SOCKET_FD < spec.json

The warden is a child subreaper (prctl(2)): a descendant that loses its parent, by a double fork or a crash,
becomes the warden's child, whatever its session. So when the warden has no child left, nothing of the command
is left. It ends the command when it is told to, when the socket to the runner closes or the runner is no
longer its parent (the runner died, however), and when it gets SIGTERM, SIGINT or SIGHUP itself.

Messages, one JSON object each. To the runner: {"started": pid} or {"failed": text}, {"shm": [path, inode]}
for each file that the command's processes were seen to hold, {"exited": status}, {"ended": [text, ...]} with
what could not be ended. From the runner: {"end": grace seconds}; anything received while ending means: do not
wait, kill now. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from lockstep.run.shm import SharedMemory
from lockstep.run.shutdown import describe, end_all, marked

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TICK_S = 0.25
_libc = ctypes.CDLL(None, use_errno=True)


class Warden:
    """One command, from its start to the end of its last descendant. `spec` is what `Command` writes."""

    def __init__(self, spec: dict[str, Any], channel: socket.socket) -> None:
        self._spec = spec
        self._channel = channel
        self._shm = SharedMemory(spec["shm"])
        self._grace_s: float = spec["grace_s"]
        self._me = psutil.Process()
        self._command: subprocess.Popen[bytes] | None = None
        self._reported = False
        self._told = False
        self._wake_read, self._wake_write = socket.socketpair()

    def run(self) -> None:
        """Start the command, watch it, end it."""
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
        self._listen_to_signals()
        try:
            self._command = self._start()
        except OSError as error:
            where = f": {error.filename!r}" if error.filename else ""
            self._send({"failed": f"{error.strerror or error}{where}"})
            return
        except (ValueError, subprocess.SubprocessError) as error:  # a null byte in an argument, say
            self._send({"failed": str(error)})
            return
        try:
            self._send({"started": self._command.pid})
            while not self._told:
                self._reap()
                self._report_exit()
                self._note(self._shm.observe(lambda: [p.pid for p in self._find()]))
                self._wait(_TICK_S)
        finally:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        argv: list[str] = self._spec["argv"]
        warden = os.getpid()

        def in_child() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != warden:
                os._exit(127)

        with Path(self._spec["log"]).open("ab") as log:
            # Also finds a full disk before the command does.
            log.write(f"$ {shlex.join(argv)}\n".encode(errors="surrogateescape"))
            log.flush()
            return subprocess.Popen(
                argv,
                env=self._spec["env"],
                cwd=self._spec["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # killpg() by a descendant must not reach the warden
                preexec_fn=in_child,
            )

    def _listen_to_signals(self) -> None:
        def told(number: int, frame: FrameType | None) -> None:
            self._told = True

        def woken(number: int, frame: FrameType | None) -> None:
            """A handler is needed for the wake-up byte to be written."""

        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, woken)
        for number in _ENDING:
            signal.signal(number, told)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a mask is inherited, by the command as well

    def _wait(self, seconds: float) -> None:
        """Wait for a child, a signal or the runner."""
        ready, _, _ = select.select([self._channel, self._wake_read], [], [], seconds)
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_read.recv(4096)
        if self._channel in ready:
            message = self._receive()
            self._grace_s = message.get("end", self._grace_s)
            self._told = True
        # The socket may have been inherited by a fork of the runner, and so outlive it.
        if os.getppid() != self._spec["runner"]:
            self._told = True

    def _reap(self) -> bool:
        """Collect what has exited; True while there are children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self._command is not None and pid == self._command.pid:
                self._command.returncode = os.waitstatus_to_exitcode(status)

    def _find(self) -> list[psutil.Process]:
        """The descendants; empty only if there is none, as an orphan is a child until it is reaped."""
        while self._reap():
            if found := self._me.children(recursive=True):
                return found
            time.sleep(0.01)
        return []

    def _find_also_escaped(self) -> list[psutil.Process]:
        """The descendants, and those that another daemon started for them."""
        return list({*self._find(), *marked(self._spec["token"])} - {self._me})

    def _end(self) -> None:
        gone = self._runner_gone()

        def pause(seconds: float) -> bool:
            ready, _, _ = select.select([self._channel] if not gone else [], [], [], seconds)
            self._report_exit()
            return bool(ready)

        def watch(processes: list[psutil.Process]) -> None:
            try:
                self._note(self._shm.observe(lambda: [p.pid for p in processes], thorough=True))
            except Exception:  # whatever it is, the processes must be ended
                traceback.print_exc()

        left = end_all(self._find_also_escaped, self._grace_s, watch=watch, pause=pause)
        self._report_exit()
        self._shm.remove()
        self._send({"ended": [describe(process) for process in left]})

    def _runner_gone(self) -> bool:
        if os.getppid() != self._spec["runner"]:
            return True
        ready, _, _ = select.select([self._channel], [], [], 0)
        return bool(ready) and not self._channel.recv(1, socket.MSG_PEEK)

    def _report_exit(self) -> None:
        if self._command is not None and self._command.returncode is not None and not self._reported:
            self._reported = self._send({"exited": self._command.returncode})

    def _note(self, files: dict[str, int]) -> None:
        for path, inode in files.items():
            self._send({"shm": [path, inode]})

    def _receive(self) -> dict[str, Any]:
        """The next message; empty when the runner has closed its end."""
        try:
            data = self._channel.recv(65536)
        except OSError:
            return {}
        message: dict[str, Any] = json.loads(data) if data else {}
        return message

    def _send(self, message: dict[str, Any]) -> bool:
        """False if the runner is gone, or reads nothing: the command is looked after all the same."""
        try:
            self._channel.send(json.dumps(message).encode())
        except OSError:
            return False
        return True


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    channel.settimeout(1.0)
    Warden(json.load(sys.stdin), channel).run()


if __name__ == "__main__":
    main()
