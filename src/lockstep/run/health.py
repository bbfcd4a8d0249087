"""How the job's own servers are asked, and whether a rollout answers."""

from __future__ import annotations

import urllib.error
import urllib.request

from lockstep.stacks.swift.commands import HOST


def direct() -> urllib.request.OpenerDirector:
    """Opens addresses of the job's own servers, through no proxy whatever the environment says."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_healthy(port: int) -> bool:
    """Asks the server on that port, through no proxy; waits a second at most. To be asked only of a port on
    which a process of the job listens."""
    try:
        with direct().open(f"http://{HOST}:{port}/health/", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
