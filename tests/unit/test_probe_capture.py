"""When the probe reads records: not while graphs are captured, and in relaxed mode on the job's device."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.inside import capture
from lockstep.inside import recorder as core
from lockstep.inside.flight_recorder import NCCL, Entry, Pg, Status
from lockstep.inside.recorder import Probe

GLOO_GROUP, NCCL_GROUP = (0, 1), (NCCL, 5)


class Recorder:
    """In the place of torch's: counts who reads what."""

    def __init__(self) -> None:
        self.now = Status({}, {})
        self.looks = self.reads = 0

    def status(self) -> Status:
        self.looks += 1
        return self.now

    def drain(self) -> tuple[list[Entry], int]:
        self.reads += 1
        return [], 0

    def retired(self) -> frozenset[tuple[Pg, int]]:
        self.reads += 1
        return frozenset()

    def issue(self, pg: Pg, issued: int, completed: int) -> None:
        self.now = Status({**self.now.enqueued, pg: issued}, {**self.now.completed, pg: completed})

    def looked(self, times: int = 3) -> None:
        """Returns when the probe has looked at the counts so often from now on."""
        until = self.looks + times
        _await(lambda: self.looks >= until)


def _await(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(core, "FlightRecorder", lambda: made)
    return made


@pytest.fixture
def probe(recorder: Recorder, tmp_path: Path) -> Iterator[Probe]:
    made = Probe(tmp_path, "rollout", "engine core", 0, {})
    yield made
    made.close()


def test_held_records_are_counted_and_not_read_until_they_are_released(
    recorder: Recorder, probe: Probe
) -> None:
    probe.hold_records()
    for issued in range(1, 20):
        recorder.issue(NCCL_GROUP, issued, issued - 1)
        recorder.looked(1)
    assert recorder.reads == 0
    probe.release_records()
    _await(lambda: recorder.reads > 0)


def test_a_process_that_waits_in_one_of_nccls_collectives_is_looked_at_all_the_same(
    recorder: Recorder, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "HELD_S", 0.3)
    probe.hold_records()
    # gloo's numbers may fall back by themselves, while the main thread captures.
    recorder.issue(GLOO_GROUP, 2, 1)
    recorder.issue(NCCL_GROUP, 7, 7)
    time.sleep(0.5)
    recorder.looked()
    assert recorder.reads == 0
    recorder.issue(NCCL_GROUP, 8, 7)
    _await(lambda: recorder.reads > 0)


def test_the_last_look_at_a_process_that_ends_reads_what_was_held(recorder: Recorder, probe: Probe) -> None:
    probe.hold_records()
    recorder.issue(NCCL_GROUP, 1, 0)
    recorder.looked()
    assert recorder.reads == 0
    probe.close()
    assert recorder.reads > 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """CUDA as torch shows it: `runs` once it is initialised, `device` of the thread that asks."""
    state = SimpleNamespace(runs=True, device=3)
    torch = SimpleNamespace(
        version=SimpleNamespace(cuda="12.8"),
        cuda=SimpleNamespace(is_initialized=lambda: state.runs, current_device=lambda: state.device),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return state


def test_records_are_read_in_relaxed_mode_on_the_jobs_device(
    recorder: Recorder, probe: Probe, cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[tuple[int, str, int]] = []
    monkeypatch.setattr(
        capture,
        "_relax",
        lambda device: entered.append((device, threading.current_thread().name, recorder.reads)),
    )
    probe.hold_records()
    probe.release_records()
    for issued in (1, 2):
        recorder.issue(NCCL_GROUP, issued, issued - 1)
        _await(lambda: recorder.reads >= issued)  # noqa: B023
    assert entered == [(3, "lockstep-probe", 0)], "once, before the first read, by the thread that reads"


def test_before_cuda_runs_no_device_is_opened_for_the_probe(
    cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    monkeypatch.setattr(capture, "_relax", entered.append)
    monkeypatch.setenv("LOCAL_RANK", "2")
    cuda.runs = False
    thread = capture.RelaxedThread()
    thread.note_device()
    thread.enter()
    assert entered == []
    cuda.runs = True
    thread.enter()
    thread.enter()
    assert entered == [2]
    thread.note_device()
    thread.enter()
    assert entered == [2, 3]


def test_a_runtime_that_cannot_relax_is_told_once_and_the_probe_goes_on(
    cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(device: int) -> None:
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(capture, "_relax", fails)
    thread = capture.RelaxedThread()
    thread.enter()
    assert capsys.readouterr().err == "", "LOCAL_RANK was a guess"
    thread.note_device()
    thread.enter()
    thread.enter()
    told = capsys.readouterr().err
    assert told.count("may spoil the capture of CUDA graphs") == 1
    assert "libcudart.so.12" in told


def test_a_boundary_reaches_the_file_without_waiting_for_the_next_look(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "POLL_S", 3600.0)
    probe = Probe(tmp_path, "rollout", "worker", 0, {})
    (ledger,) = (tmp_path / "ledgers").glob("*.jsonl")
    probe.boundary("generate begin")
    _await(lambda: '"b":"generate begin"' in ledger.read_text())
    probe.close()
