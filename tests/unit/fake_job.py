"""Stands in for both commands of the job: `python fake_job.py SIDE PORT ACTION...`. Stdlib only.

Actions, one after another: `serve` (health checks are answered from now on), `spawn` (a worker by
multiprocessing), `spawn-dies` (one that ends once the supervisor has seen it), `ledger` / `ledger-end` (the
process writes its ledger, and ends it), `train` (boundaries of one step), `pulse` (one a second, nothing
moves), `pulse-once`, `error` (the probe failed), `wait` (for the other side to serve), `until FLAG`, `tell
FLAG`, `hang`, `listen PORT`, `say TEXT`, `kill-worker`, `exit CODE`, `die`.

Flags are files in the folder $FLAGS, so that things happen in order however slow the machine is.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PULSE = {"c": {}, "beat": 0, "at": ["x.py:1 f"]}


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class Ledger:
    def __init__(self, side: str, role: str, rank: int = 0) -> None:
        name = f"{side}-{role.replace(' ', '_')}-{rank}-{os.getpid()}.jsonl"
        self.path = Path(os.environ["LOCKSTEP_RUN_DIR"], "ledgers", name)
        self.write(
            "process", v=1, side=side, role=role, rank=rank, pid=os.getpid(), host="h", versions={}, argv=[]
        )

    def write(self, kind: str, **fields: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"k": kind, "t": time.time(), **fields}) + "\n")

    def pulse_on(self) -> None:
        while True:
            self.write("pulse", **PULSE)
            time.sleep(1)


def flag(name: str) -> Path:
    return Path(os.environ["FLAGS"], name)


def until(name: str) -> None:
    while not flag(name).exists():
        time.sleep(0.05)


def worker(dies: bool) -> None:
    if dies:
        until("child seen")
        raise RuntimeError("this worker cannot start")
    Ledger("rollout", "worker").pulse_on()


def main(side: str, port: str, actions: list[str]) -> None:
    ledger: Ledger | None = None
    children = []
    todo = iter(actions)
    for action in todo:
        if action == "serve":
            server = ThreadingHTTPServer(("127.0.0.1", int(port)), Health)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        elif action in ("spawn", "spawn-dies"):
            process = multiprocessing.get_context("spawn").Process(
                target=worker, args=(action == "spawn-dies",)
            )
            process.start()
            children.append(process)
        elif action == "ledger":
            ledger = Ledger(side, "rank" if side == "trainer" else "server")
        elif action == "train" and ledger:
            for name in ("train begin", "step", "train end"):
                ledger.write("boundary", b=name, n=1, step=1, c={}, s={})
        elif action == "pulse" and ledger:
            threading.Thread(target=ledger.pulse_on, daemon=True).start()
        elif action == "pulse-once" and ledger:
            ledger.write("pulse", **PULSE)
        elif action == "error" and ledger:
            ledger.write("error", what="the probe is broken")
        elif action == "ledger-end" and ledger:
            ledger.write("end")
        elif action == "wait":
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
        elif action == "until":
            until(next(todo))
        elif action == "tell":
            flag(next(todo)).touch()
        elif action == "say":
            print(next(todo), flush=True)
        elif action == "kill-worker":
            os.kill(children[0].pid or 0, signal.SIGKILL)
        elif action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "hang":
            time.sleep(600)
        elif action == "exit":
            os._exit(int(next(todo)))  # without waiting for children, as a crash
        elif action == "listen":
            held = socket.create_server(("127.0.0.1", int(next(todo))))
            assert held
        else:
            raise ValueError(action)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
