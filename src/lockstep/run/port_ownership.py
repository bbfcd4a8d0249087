"""Whether the job itself listens on the ports that were chosen for it: another process may have taken one in
between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from lockstep.run.ports import PortInUse, check_port_free

_LISTEN = "0A"
"""TCP_LISTEN in /proc/net/tcp (proc(5))."""


class Claims:
    """The ports that no process of the job listens on yet. Looking connects to nobody and binds nothing of
    the job's."""

    def __init__(self, host: str, ports: Mapping[str, int]) -> None:
        """`ports`: what each is for, as messages should name it -> its number."""
        self._host = host
        self._open = dict(ports)

    def claimed(self, name: str) -> bool:
        """Whether a process of the job was seen to listen on this port."""
        return name not in self._open

    def stranger(self, pids: Callable[[], Iterable[int]]) -> str | None:
        """A sentence on a port that a process outside the job listens on; None while there is none.

        `pids` lists the job's processes. It is called only when somebody listens.
        """
        listening = _listening() if self._open else set()
        for name, port in list(self._open.items()):
            if port not in listening:
                continue
            if any(_listens(pid, port) for pid in pids()):
                del self._open[name]
                continue
            try:
                check_port_free(self._host, port)
            except PortInUse as error:
                return (
                    f"the job's port for the {name} was taken before it could listen there: {error.strerror}"
                )
        return None


def _listening() -> set[int]:
    """All ports of this network namespace that somebody listens on."""
    ports = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _listens(pid: int, port: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
