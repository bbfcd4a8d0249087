"""A process that a signal ends says its last words first."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, os, signal, sys, threading, time
from lockstep.probe.last_words import before_signals

def close(by):
    with open(sys.argv[1], "a") as file:
        file.write(by + "\\n")

exec(sys.argv[3])
before_signals(close)
open(sys.argv[2], "w").close()
exec(sys.argv[4])
"""
BLOCKED = """
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
"""
"""The main thread is in C code that does not come back to Python; the GIL is released, as in a collective."""


def start(tmp_path: Path, body: str, before: str = "") -> subprocess.Popen[bytes]:
    words, ready = tmp_path / "words", tmp_path / "ready"
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(words), str(ready), before, body], stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 20
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    return child


def words(tmp_path: Path) -> list[str]:
    path = tmp_path / "words"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("body", ["os.abort()", "threading.Thread(target=os.abort).start(); time.sleep(30)"])
def test_an_abort_is_told_and_still_aborts(tmp_path: Path, body: str) -> None:
    child = start(tmp_path, body)
    assert child.wait(20) == -signal.SIGABRT
    assert words(tmp_path) == ["SIGABRT"]


@pytest.mark.parametrize("body", [BLOCKED, "time.sleep(30)", "while True: pass"])
def test_a_termination_is_told_and_still_terminates(tmp_path: Path, body: str) -> None:
    child = start(tmp_path, body)
    child.terminate()
    assert child.wait(20) == -signal.SIGTERM
    assert words(tmp_path) == ["SIGTERM"]


def test_the_faulthandler_still_has_its_say(tmp_path: Path) -> None:
    child = start(tmp_path, "os.abort()", before="import faulthandler; faulthandler.enable()")
    assert child.wait(20) == -signal.SIGABRT
    assert child.stderr is not None
    assert b"Fatal Python error: Aborted" in child.stderr.read()
    assert words(tmp_path) == ["SIGABRT"]


def test_an_end_without_a_signal_is_an_end_without_a_name(tmp_path: Path) -> None:
    assert start(tmp_path, "pass").wait(20) == 0
    assert (tmp_path / "words").read_text() == "\n"


@pytest.mark.parametrize(("body", "number"), [("os.abort()", signal.SIGABRT), (BLOCKED, signal.SIGTERM)])
def test_a_signal_while_the_interpreter_ends_ends_it(tmp_path: Path, body: str, number: int) -> None:
    """What is registered with atexit before runs after."""
    child = start(
        tmp_path, "pass", before=f"import atexit; atexit.register(lambda: exec({body!r}, globals()))"
    )
    if number == signal.SIGTERM:
        child.terminate()
    assert child.wait(20) == -number
    assert words(tmp_path) == []


def test_a_handler_that_was_there_is_left_alone(tmp_path: Path) -> None:
    child = start(
        tmp_path, "time.sleep(30)", before="signal.signal(signal.SIGTERM, lambda n, f: sys.exit(7))"
    )
    child.terminate()
    assert child.wait(20) == 7
    assert words(tmp_path) == []


def test_a_handler_that_comes_later_is_left_alone(tmp_path: Path) -> None:
    child = start(tmp_path, "signal.signal(signal.SIGTERM, lambda n, f: sys.exit(7)); time.sleep(30)")
    child.terminate()
    assert child.wait(20) == 7
    assert words(tmp_path) == []


def test_a_forked_child_dies_of_it_without_a_word(tmp_path: Path) -> None:
    body = """
pid = os.fork()
if pid == 0:
    time.sleep(30)
time.sleep(0.3)
os.kill(pid, signal.SIGTERM)
sys.exit(os.WTERMSIG(os.waitpid(pid, 0)[1]))
"""
    assert start(tmp_path, body).wait(20) == signal.SIGTERM
    assert words(tmp_path) == []
