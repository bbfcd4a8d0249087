"""Has a process write its ledger to the end when a signal ends it.

Gloo aborts a rank that gets another size than it waits for (`gloo::EnforceNotMet` in
`gloo/transport/tcp/pair.cc`, SIGABRT), and torchrun sends SIGTERM to the other ranks in the same second.
Without this both would take with them what they had issued since the last boundary, which is the proof of
who left the order.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_kept: list[Any] = []
"""What C code calls must not be collected."""
_TOLD = (signal.SIGINT, signal.SIGTERM)
_TOLD_S = 60.0
"""A process that ends within this time of one of them ends by it; launchers wait 30 s before they kill."""
_told: tuple[str, float] = ("", 0.0)
"""The last of them that came, and when on the monotonic clock."""
_ASK = 0
"""No signal's number: asks the thread that hears of signals to answer when it has taken those before."""
_answered = threading.Event()
_bell: int | None = None
"""Where Python's C handler writes the numbers of signals, if that is the pipe of this module."""


def before_signals(close: Callable[[str], None]) -> None:
    """Calls `close` with the signal's name before SIGABRT, SIGTERM or SIGINT ends this process. Call it from
    the main thread.

    Leaves a signal alone that the process handles already, and one that it handles itself later on: there it
    only notes what came, for the end that follows.
    """
    libc = _libc()
    _before_termination(libc, close)
    before_abort(close)


def before_abort(close: Callable[[str], None]) -> None:
    """The same for SIGABRT alone, for a process that has its own way to end on SIGTERM."""
    libc = _libc()
    _before_abort(libc, close)

    def leave() -> None:
        """While the interpreter ends, nothing of Python's may be called for a signal any more."""
        close(_told_by())
        _forget(libc)

    atexit.register(leave)
    os.register_at_fork(after_in_child=lambda: _forget(libc))


def _told_by() -> str:
    """The signal by which a user or a launcher has told this process to end, if one has lately."""
    if _bell is not None:
        with contextlib.suppress(OSError):
            os.write(_bell, bytes([_ASK]))
            _answered.wait(timeout=1)
    if getattr(sys, "last_type", None) is KeyboardInterrupt:  # the exception that ends the interpreter
        return "SIGINT"
    name, t = _told
    return name if name and time.monotonic() - t < _TOLD_S else ""


def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal.restype = ctypes.c_void_p
    return libc


def _forget(libc: Any) -> None:
    """Both signals end the process at once again, unless somebody else handles them by now."""
    global _bell
    _bell = None  # a forked child has the pipe, and no thread that reads it
    if signal.getsignal(signal.SIGABRT) is signal.SIG_DFL:
        libc.signal(signal.SIGABRT, None)
    if signal.getsignal(signal.SIGTERM) is _placeholder:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def _placeholder(number: int, frame: FrameType | None) -> None:
    """Makes Python's C handler take the signal."""


def _before_abort(libc: Any, close: Callable[[str], None]) -> None:
    # `abort` raises the signal in the thread that calls it and ends the process when the handler has
    # returned. Python's own handlers would run too late: not before the main thread gets back to its
    # interpreter.
    if signal.getsignal(signal.SIGABRT) is not signal.SIG_DFL:
        return

    def tell(number: int) -> None:
        close("SIGABRT")
        # Raised again it comes when this has returned, to who had it before: the faulthandler, or nobody.
        libc.signal(signal.SIGABRT, before)
        libc.raise_(signal.SIGABRT)

    libc.raise_ = getattr(libc, "raise")
    handler = _HANDLER(tell)
    _kept.append(handler)
    before = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))


def _before_termination(libc: Any, close: Callable[[str], None]) -> None:
    global _bell
    # The signal may interrupt the main thread anywhere, also inside a collective, where no handler of
    # Python's runs. So Python's C handler only writes a byte into a pipe, and a thread that waits there
    # does the rest.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    if (other := signal.set_wakeup_fd(writer, warn_on_full_buffer=False)) != -1:
        signal.set_wakeup_fd(other)
        os.close(reader)
        os.close(writer)
        return

    def wait() -> None:
        global _told
        while number := os.read(reader, 1):
            if number[0] == _ASK:
                _answered.set()
            if number[0] in _TOLD:
                _told = signal.Signals(number[0]).name, time.monotonic()
            if number[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) is _placeholder:
                close("SIGTERM")
                libc.signal(signal.SIGTERM, None)
                os.kill(os.getpid(), signal.SIGTERM)

    _bell = writer
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _placeholder)
    threading.Thread(target=wait, name="lockstep-last-words", daemon=True).start()
