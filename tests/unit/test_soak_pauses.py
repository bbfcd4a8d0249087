"""Processes are stopped when they should be, and run again whatever happens."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from lockstep.experiments.soak.pauses import Pauses
from lockstep.experiments.soak.rounds import Pause


@pytest.fixture
def sleeper() -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    yield psutil.Process(child.pid)
    child.kill()
    child.wait()


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.005)
    return False


def stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_a_worker_is_stopped_as_planned(sleeper: psutil.Process) -> None:
    with Pauses([sleeper], [[Pause(0.05, 0.3), Pause(0.05, 0.1)]]) as pauses:
        assert eventually(lambda: stopped(sleeper))
        assert eventually(lambda: not stopped(sleeper))
        assert eventually(lambda: pauses.times == 2)
    assert not stopped(sleeper)
    assert 0.4 <= pauses.seconds < 2.0


def test_the_end_of_the_round_ends_a_pause(sleeper: psutil.Process) -> None:
    begun = time.monotonic()
    with Pauses([sleeper], [[Pause(0.0, 60.0), Pause(0.0, 60.0)]]) as pauses:
        assert eventually(lambda: stopped(sleeper))
    assert time.monotonic() - begun < 10
    assert not stopped(sleeper)
    assert pauses.times == 1


def test_an_error_in_the_round_ends_a_pause(sleeper: psutil.Process) -> None:
    def fails() -> None:
        with Pauses([sleeper], [[Pause(0.0, 60.0)]]):
            assert eventually(lambda: stopped(sleeper))
            raise RuntimeError("round")

    with pytest.raises(RuntimeError, match="round"):
        fails()
    assert not stopped(sleeper)


def test_no_pause_stops_nothing(sleeper: psutil.Process) -> None:
    with Pauses([sleeper], [[]]) as pauses:
        assert not eventually(lambda: stopped(sleeper), 0.2)
    assert pauses.times == 0


def test_a_worker_that_has_ended_is_left_alone(sleeper: psutil.Process) -> None:
    with Pauses([sleeper], [[Pause(0.05, 0.05)] * 5]) as pauses:
        sleeper.kill()
        sleeper.wait(5)
        time.sleep(0.2)
    assert pauses.times <= 1
