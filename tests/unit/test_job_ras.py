"""NCCL's RAS, played by a server that speaks its text protocol (`src/ras/client_support.cc` of NCCL 2.27)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.run import ras

REPORT = (
    "Job summary\n===========\n\n  Nodes  Processes  GPUs\n      1          6     6\n\nErrors\n======\n\n"
)

UNKNOWN = "ERROR: Unknown command SET FORMAT json\n"
"""What a release before 2.28.9 says to it; it goes on in text."""


@contextmanager
def server(
    *answers: str | None, after: Callable[[socket.socket], None] = lambda c: None
) -> Iterator[tuple[int, list[str]]]:
    """Answers one connection line by line; None closes it, `after` runs when all has been answered."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[str] = []

    def serve() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, connection.makefile("r") as lines:
            for answer in answers:
                asked.append(lines.readline().strip())
                if answer is None:
                    return
                connection.sendall(answer.encode())
            after(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], asked
    finally:
        listener.close()
        thread.join(timeout=5)


def test_a_report_is_asked_for_as_ncclras_does() -> None:
    with server("SERVER PROTOCOL 2\n", "OK\n", UNKNOWN, REPORT) as (port, asked):
        assert ras.query("127.0.0.1", port) == REPORT
    assert asked == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]


def test_a_newer_protocol_is_answered_all_the_same_and_a_report_may_come_in_parts() -> None:
    def rest(connection: socket.socket) -> None:
        time.sleep(0.05)
        connection.sendall(b"the rest\n")

    with server("SERVER PROTOCOL 3\n", "OK\n", UNKNOWN, REPORT, after=rest) as (port, _):
        assert ras.query("127.0.0.1", port) == REPORT + "the rest\n"


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (
            ("HTTP/1.1 400 Bad Request\n",),
            "asked 'CLIENT PROTOCOL 2', expected 'SERVER PROTOCOL', got 'HTTP/1.1",
        ),
        (("SERVER PROTOCOL 2\n", "ERROR: unknown command\n"), "asked 'TIMEOUT 5', expected 'OK', got 'ERROR"),
        ((None,), "expected 'SERVER PROTOCOL', got ''"),
    ],
)
def test_somebody_else_on_the_port(answers: tuple[str | None, ...], told: str) -> None:
    with server(*answers) as (port, _), pytest.raises(ras.RasError) as caught:
        ras.query("127.0.0.1", port)
    assert told in str(caught.value)


def test_no_answer_and_no_end_take_bounded_time_and_space(monkeypatch: pytest.MonkeyPatch) -> None:
    with server("SERVER PROTOCOL 2\n", "OK\n", UNKNOWN, "part\n", after=lambda c: time.sleep(1)) as (port, _):
        begun = time.monotonic()
        with pytest.raises(ras.RasError, match="timed out"):
            ras.query("127.0.0.1", port, wait_s=0.3)
        assert time.monotonic() - begun < 0.9
    monkeypatch.setattr(ras, "MAX_REPORT", 64)
    with server("SERVER PROTOCOL 2\n", "OK\n", UNKNOWN, "x" * 1000) as (port, _):
        assert ras.query("127.0.0.1", port) == "x" * 64


def test_a_side_without_a_report_says_why(tmp_path: Path) -> None:
    with (
        server("SERVER PROTOCOL 2\n", "OK\n", UNKNOWN, REPORT) as (port, _),
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        free = taken.getsockname()[1]
        taken.close()
        ras.save({"rollout": port, "trainer": free}, "127.0.0.1", tmp_path)
        ras.save({"rollout": free}, "127.0.0.1", tmp_path / "not there")
    assert (tmp_path / "rollout.ras.txt").read_text() == REPORT
    assert json.loads((tmp_path / "rollout.ras.json").read_text())["format"] == "text"
    assert not (tmp_path / "trainer.ras.json").exists()
    assert (tmp_path / "trainer.ras.txt").read_text().startswith(f"no report: 127.0.0.1:{free}: ")
