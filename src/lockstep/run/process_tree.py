"""The processes of the job: started, listed, and ended without exception. Linux only.

Each command runs under a warden (`lockstep.run.reaper`), a small process of its own session. The warden ends
the whole tree of its command when the runner says so or dies, by whatever signal. If a warden is killed
instead, the runner ends the tree: it finds the processes by a variable in their environment, and by what it
listed before.
"""

from __future__ import annotations

import contextlib
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

import psutil

from lockstep.run import shm
from lockstep.run.process import Command, ProcessTreeError, StartError, WardenLostError
from lockstep.run.shutdown import describe

__all__ = [
    "Command",
    "ProcessInfo",
    "ProcessTree",
    "ProcessTreeError",
    "StartError",
    "WardenLostError",
    "terminate_as_exit",
]


@dataclass(frozen=True)
class ProcessInfo:
    """One live process of the job."""

    command: str
    """Name of the command that it descends from."""
    pid: int
    name: str
    cmdline: tuple[str, ...]
    state: str
    """As psutil names it: `running`, `sleeping`, `disk-sleep`, `stopped`, `zombie`, ..."""
    cpu_s: float
    """User and system CPU time so far, in seconds."""
    rss: int
    """Resident memory in bytes; pages shared with other processes count in each of them."""


class ProcessTree:
    """All commands of one job. Leaving the `with` block, in any way, ends every process that they started.

    To be used from one thread. An interrupt (Ctrl-C, SIGTERM under `terminate_as_exit`) while the processes
    are being ended cuts the grace short, and is raised once all have ended.
    """

    def __init__(self, *, run_id: str | None = None, grace_s: float = 5.0) -> None:
        """`run_id` becomes LOCKSTEP_RUN_ID of the commands; `grace_s` is the time from SIGTERM to SIGKILL."""
        self.run_id = run_id or uuid.uuid4().hex
        self.grace_s = grace_s
        self._commands: list[Command] = []
        self._baseline: dict[str, int] = {}
        self._open = False
        self._survivors: list[psutil.Process] = []

    def __enter__(self) -> ProcessTree:
        self._baseline = shm.listing()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._end(self._commands, self.grace_s)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Command:
        """Start a command; its output, after a line with the command itself, is appended to `log`.

        `env` is the whole environment (the runner's own if None); `cwd` is the runner's own if None.

        Raises:
            StartError: The command or `cwd` was not found, or `log` cannot be written.
        """
        if not self._open:
            raise ProcessTreeError(f"cannot start {name!r} outside of the with block of its ProcessTree")
        command = Command(name, log)
        self._commands.append(command)  # before it starts: an interrupt from here on ends it
        try:
            command.start(
                argv, env=env, cwd=cwd, run_id=self.run_id, grace_s=self.grace_s, baseline=self._baseline
            )
        except StartError:
            self._commands.remove(command)
            raise
        return command

    def stop(self, command: Command, grace_s: float | None = None) -> None:
        """End the command's whole subtree, also what has daemonised. Does nothing if that was done before."""
        self._end([command], self.grace_s if grace_s is None else grace_s)

    def pids(self) -> list[ProcessInfo]:
        """Every live process of the job. The wardens are not part of it."""
        found = []
        for command in self._commands:
            for process in command.descendants():
                with contextlib.suppress(psutil.Error), process.oneshot():
                    times = process.cpu_times()
                    found.append(
                        ProcessInfo(
                            command=command.name,
                            pid=process.pid,
                            name=process.name(),
                            cmdline=tuple(process.cmdline()),
                            state=process.status(),
                            cpu_s=times.user + times.system,
                            rss=process.memory_info().rss,
                        )
                    )
        return found

    def rss(self) -> int:
        """Sum of RSS in bytes: cheap; shared pages count once per process, so it is an upper bound."""
        return sum(info.rss for info in self.pids())

    def pss(self) -> int:
        """Sum of PSS in bytes: shared pages count once. The kernel walks all pages for it."""
        total = 0
        for command in self._commands:
            for process in command.descendants():
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().pss
        return total

    def leftovers(self) -> list[str]:
        """A sentence for each process or shared memory file that could not be ended or removed.

        Empty while the job runs, as nothing was to be ended yet.
        """
        left = [text for command in self._commands if command.ended for text in command.left_processes()]
        left += [describe(process) for process in self._survivors if process.is_running()]
        if self._commands and all(command.ended for command in self._commands):
            memory = shm.SharedMemory(self._baseline)
            for command in self._commands:
                memory.owned.update(command.shared_memory)
            left += memory.remove()  # one that the other command still held when its own was ended
        return left

    def _end(self, commands: Sequence[Command], grace_s: float) -> None:
        """End the commands side by side."""
        interrupt: BaseException | None = None
        while True:
            try:
                for command in commands:
                    command.request_end(0.0 if interrupt else grace_s)
                for command in commands:
                    self._survivors += command.await_end()
                break
            except (KeyboardInterrupt, SystemExit) as error:
                interrupt = error
        self.leftovers()
        if interrupt is not None:
            raise interrupt


@contextlib.contextmanager
def terminate_as_exit() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit(128 + number), so that `with` blocks unwind. Main thread only.

    A signal that is ignored (SIGHUP under nohup) stays so.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        for number in before:
            signal.signal(number, leave)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
