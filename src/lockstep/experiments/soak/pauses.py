"""Workers paused from outside, with SIGSTOP and SIGCONT: what a debugger, a container's freezer or a machine
without a free core does to them. Nothing in the job is patched.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

import psutil

from lockstep.experiments.soak.rounds import Pause


class Pauses:
    """While the `with` block runs, workers are paused as planned; after it all of them run."""

    def __init__(self, workers: Sequence[psutil.Process], plans: Sequence[Sequence[Pause]]) -> None:
        self._threads = [
            threading.Thread(target=self._pause, args=pair, name="lockstep-pauses", daemon=True)
            for pair in zip(workers, plans, strict=True)
            if pair[1]
        ]
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.times = 0
        self.seconds = 0.0
        """Of all workers together."""

    def __enter__(self) -> Pauses:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _pause(self, worker: psutil.Process, plan: Sequence[Pause]) -> None:
        # psutil looks whether the process is still the same one. That one has ended is seen elsewhere.
        with contextlib.suppress(psutil.Error):
            for pause in plan:
                if self._over.wait(pause.after_s):
                    return
                begun = time.monotonic()
                try:
                    worker.suspend()
                    self._over.wait(pause.length_s)
                finally:
                    worker.resume()
                with self._lock:
                    self.times += 1
                    self.seconds += time.monotonic() - begun
