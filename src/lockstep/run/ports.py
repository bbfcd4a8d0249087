"""Free ports for the servers and rendezvous of a job. Linux only.

A port is chosen outside the range that the kernel takes for outgoing connections, where it would be gone
again before its server starts, and stays reserved for this process: by a socket with the port in its
(abstract) name, which is unique per network namespace, as ports are, and which the kernel drops when the
process dies.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil

_LOWEST = 10240
_HIGHEST = 65535
_held: dict[int, socket.socket] = {}


class PortInUse(OSError):
    """The port is taken; names it and, where that can be found out, who holds it."""


def free_ports(n: int, host: str = "127.0.0.1", *, consecutive: bool = False) -> list[int]:
    """`n` distinct ports that nobody uses on any address, reserved for this process until `release_ports`.

    The reservation keeps other callers of this function away; it does not occupy the port. With `consecutive`
    each port is the one before plus 1.

    Raises:
        ValueError: `n` is not between 1 and 1000.
        OSError: `host` is not an address of this machine, or there are not enough free ports.
    """
    if not 1 <= n <= 1000:
        raise ValueError(f"expected 1 to 1000 ports, got {n}")
    _bind(host, 0).close()
    candidates = _candidates()
    random.SystemRandom().shuffle(candidates)
    usable = set(candidates)
    taken: list[int] = []
    for first in candidates:
        block = range(first, first + n) if consecutive else range(first, first + 1)
        if not usable.issuperset(block) or any(port in taken for port in block):
            continue
        reserved = [port for port in block if _reserve(port, host)]
        if len(reserved) < len(block):
            release_ports(reserved)
            continue
        taken += reserved
        if len(taken) == n:
            return taken
    release_ports(taken)
    raise OSError(
        errno.EADDRINUSE, f"there are no {n} free {'consecutive ' if consecutive else ''}ports on {host}"
    )


def release_ports(ports: Iterable[int]) -> None:
    """Give up the reservation of ports from `free_ports`; others are ignored."""
    for port in ports:
        if port in _held:
            _held.pop(port).close()


def check_port_free(host: str, port: int) -> None:
    """Check that a server could listen on `port` of `host` now.

    Raises:
        PortInUse: It is taken.
        ValueError: `port` is not between 1 and 65535.
        OSError: `host` is not an address of this machine, or the port is not allowed to this user.
    """
    if not 1 <= port <= _HIGHEST:
        raise ValueError(f"expected a port between 1 and {_HIGHEST}, got {port}")
    try:
        _bind(host, port, reuse=True).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortInUse(errno.EADDRINUSE, f"port {port} of {host} is in use{_holder(port)}") from error


def _candidates() -> list[int]:
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        low, high = 32768, 60999  # the kernel's default
    outside = [port for port in range(_LOWEST, _HIGHEST + 1) if not low <= port <= high]
    return outside if len(outside) >= 1000 else list(range(_LOWEST, _HIGHEST + 1))


def _reserve(port: int, host: str) -> bool:
    if port in _held:
        return False
    name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        name.bind(f"\0lockstep-port-{port}")
        _bind(host, port).close()
        _bind("0.0.0.0", port).close()
        if socket.has_dualstack_ipv6():
            _bind("::", port).close()
    except OSError:
        name.close()
        return False
    _held[port] = name
    return True


def _bind(host: str, port: int, *, reuse: bool = False) -> socket.socket:
    """A bound socket. `reuse` overlooks connections of a server that has ended, as servers themselves do."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, f"host {host!r} is not known: {error.strerror}") from error
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot bind port {port} of {host}: {error.strerror}") from error
    return bound


def _holder(port: int) -> str:
    """` by process PID (command)`, as far as it can be found out."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return ""
    pids = {c.pid for c in connections if c.laddr and c.laddr.port == port and c.status == psutil.CONN_LISTEN}
    for pid in sorted(pid for pid in pids if pid):
        try:
            return f" by process {pid} ({' '.join(psutil.Process(pid).cmdline())})"
        except psutil.Error:
            return f" by process {pid}"
    return ""
