"""Whether a rollout server answers."""

from __future__ import annotations

import urllib.error
import urllib.request

from lockstep.job.launch import HOST


def is_healthy(port: int) -> bool:
    """Asks the server on that port, through no proxy; waits a second at most. To be asked only of a port on
    which a process of the job listens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{HOST}:{port}/health/", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
