from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.run import ports
from lockstep.run.ports import PortInUse, check_port_free, free_ports, release_ports

ENV = {**os.environ, "PYTHONPATH": str(Path(lockstep.__file__).parents[1])}
LOW, HIGH = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())


def test_ports_are_distinct_free_and_not_for_outgoing_connections() -> None:
    found = free_ports(8)
    assert len(set(found)) == 8
    servers = [socket.create_server(("127.0.0.1", port)) for port in found]
    for server in servers:
        server.close()
    if HIGH - LOW < 50000:
        assert not any(LOW <= port <= HIGH for port in found)
    assert not set(found) & set(free_ports(8))


def test_consecutive_ports() -> None:
    first, second, third = free_ports(3, consecutive=True)
    assert (second, third) == (first + 1, first + 2)


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("127.0.0.1", "0.0.0.0", "127.0.0.2"):
        taken, free = free_ports(2)
        release_ports([taken, free])
        monkeypatch.setattr(ports, "_candidates", lambda pair=(taken, free): list(pair))
        with socket.create_server((host, taken)):
            assert free_ports(1) == [free]
            with pytest.raises(OSError, match="no 1 free ports on"):
                free_ports(1)
        monkeypatch.undo()
        release_ports([free])


def test_a_pair_around_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, fourth = four = free_ports(4, consecutive=True)
    release_ports(four)
    monkeypatch.setattr(ports, "_candidates", lambda: list(four))
    with socket.create_server(("127.0.0.1", second)):
        assert free_ports(2, consecutive=True) == [third, fourth]
        with pytest.raises(OSError, match="no 2 free consecutive ports"):
            free_ports(2, consecutive=True)
    assert free_ports(2, consecutive=True) == [first, second]


def test_another_process_gets_other_ports_until_release_or_death(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    code = (
        "import sys\nfrom lockstep.run import ports\n"
        f"ports._candidates = lambda: [{port}]\n"
        "try:\n    print(ports.free_ports(1), flush=True)\n"
        "except OSError as error:\n    print(error, flush=True)\n"
        "sys.stdin.read()"
    )

    def other() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", code], env=ENV, stdin=pipe, stdout=pipe, text=True)

    with other() as refused:
        assert "no 1 free ports" in refused.communicate()[0]
    release_ports([port, 1])
    with other() as given:
        assert given.stdout is not None
        assert given.stdout.readline() == f"[{port}]\n"
        monkeypatch.setattr(ports, "_candidates", lambda: [port])
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1)
        given.kill()
    assert free_ports(1) == [port]


def test_a_port_in_use_is_named_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = rf"port {port} of 127.0.0.1 is in use by process {os.getpid()} \(.*python"
        with pytest.raises(PortInUse, match=text):
            check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


def test_a_port_of_a_server_that_just_ended_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first and is left in TIME_WAIT
            client.recv(1)
    check_port_free(*address)


@pytest.mark.parametrize("n", [0, -1, 1001])
def test_a_wrong_number_of_ports(n: int) -> None:
    with pytest.raises(ValueError, match=f"expected 1 to 1000 ports, got {n}"):
        free_ports(n)


@pytest.mark.parametrize("port", [0, 65536])
def test_a_wrong_port(port: int) -> None:
    with pytest.raises(ValueError, match=f"got {port}"):
        check_port_free("127.0.0.1", port)


def test_a_host_that_is_not_this_machine() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        free_ports(1, host="192.0.2.1")
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        check_port_free("192.0.2.1", 12345)
    with pytest.raises(OSError, match=r"host 'no such host' is not known"):
        free_ports(1, host="no such host")
