"""Asks NCCL itself how its communicators are: a second witness, which also knows those that torch does not.

NCCL's RAS subsystem (2.24 and later; torch 2.8.0 brings 2.27.3) has one process of a job and host answer on a
TCP port, in text, and from 2.28.9 on in JSON for who asks for it. The words are those of NCCL's own client
`ncclras` (`src/ras/client.cc`), and asking takes part in no collective. Its reports are kept, and what they
say on the group of a verdict is told beside it (`lockstep.run.ras_report`): no verdict is made from them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from lockstep.run.ras_report import Report, read

CLIENT_PROTOCOL = 2
PEERS_S = 5
"""Longest wait of the process that answers for those it asks: stopped ranks do not answer."""
WAIT_S = 12.0
MAX_REPORT = 1 << 20
"""Bytes kept of one report."""


class RasError(RuntimeError):
    """Nobody answers on that port, or not as NCCL's RAS does."""


def ask(host: str, port: int, wait_s: float = WAIT_S) -> Report:
    """The verbose status of the NCCL job that answers on `port`, asked for as JSON. Raises RasError."""
    return read(query(host, port, wait_s))


def query(host: str, port: int, wait_s: float = WAIT_S) -> str:
    """The same as NCCL words it. Raises RasError."""
    until = time.monotonic() + wait_s
    try:
        with socket.create_connection((host, port), timeout=wait_s) as connection:
            for ask, expected in (
                (f"CLIENT PROTOCOL {CLIENT_PROTOCOL}", "SERVER PROTOCOL "),
                (f"TIMEOUT {PEERS_S}", "OK"),
            ):
                connection.sendall(f"{ask}\n".encode())
                answer = _read(connection, until, whole=False)
                if not answer.upper().startswith(expected):
                    raise RasError(
                        f"{host}:{port}: asked {ask!r}, expected {expected.strip()!r}, got {answer[:80]!r}"
                    )
            # A release without JSON answers that it does not know the command, and goes on in text.
            connection.sendall(b"SET FORMAT json\n")
            _read(connection, until, whole=False)
            connection.sendall(b"VERBOSE STATUS\n")
            return _read(connection, until, whole=True)
    except OSError as error:
        raise RasError(f"{host}:{port}: {error}") from error


def save(ports: Mapping[str, int], host: str, folder: Path) -> dict[str, Report]:
    """Writes `<side>.ras.txt` for each side, as NCCL has sent it, or why there is none; and what was read of
    it, `<side>.ras.json`. Returns the reports. Raises nothing."""
    reports: dict[str, Report] = {}
    for side, port in ports.items():
        try:
            reports[side] = ask(host, port)
            text = reports[side].text
        except RasError as error:
            text = f"no report: {error}\n"
        with contextlib.suppress(OSError):
            (folder / f"{side}.ras.txt").write_text(text)
            if side in reports:
                (folder / f"{side}.ras.json").write_text(json.dumps(reports[side].to_json(), indent=1) + "\n")
    return reports


def _read(connection: socket.socket, until: float, *, whole: bool) -> str:
    """One line, or all until the other side closes; at most MAX_REPORT bytes. Raises TimeoutError."""
    received = b""
    while len(received) < MAX_REPORT and (whole or not received.endswith(b"\n")):
        connection.settimeout(max(until - time.monotonic(), 0.01))
        part = connection.recv(65536)
        if not part:
            break
        received += part
    return received[:MAX_REPORT].decode(errors="replace")
