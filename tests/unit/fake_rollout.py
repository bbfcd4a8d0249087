"""Stands in for the rollout server: `python fake_rollout.py PORT HOW...`, HOW being what it does with each
request after the first in turn: `answer`, `slow` (3 s), `few` (one answer too few), `error` (500), `die`,
`hang` (like the race: engine core 0 waits, engine core 1 is idle); the last one again and again. `cold`: 500
to the first one, too. Answers /health/, and writes the ledgers of a worker and two engine cores. Stdlib only.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

DP = {"g": 0, "name": "rollout.dp", "lib": "dp:0", "backend": "gloo", "ranks": [0, 1]}
IDLE: dict[str, Any] = {
    "cpu": 1.0,
    "park": "futex",
    "at": ["vllm/v1/engine/core.py:739 _process_input_queue"],
}
WAITS = {"g": 0, "seq": 2, "op": "all_reduce", "dtype": "Int", "n": 2, "at": "vllm/forward_context.py:113"}


class Ledger:
    def __init__(self, role: str, rank: int, pid: int) -> None:
        name = f"rollout-{role.replace(' ', '_')}-{rank}-{pid}.jsonl"
        self.path = Path(os.environ["LOCKSTEP_RUN_DIR"], "ledgers", name)
        process = {"side": "rollout", "role": role, "rank": rank, "pid": pid}
        self.write("process", v=1, **process, host="h", versions={}, argv=[])

    def write(self, kind: str, **fields: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"k": kind, "t": time.time(), **fields}) + "\n")


class Server(BaseHTTPRequestHandler):
    hows = sys.argv[2:]
    hung = warm = False

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["infer_requests"]
        how = "answer"  # to the first, which warms up
        if Server.warm or self.hows[0] == "cold":
            how = self.hows.pop(0) if len(self.hows) > 1 else self.hows[0]
        Server.warm = True
        if how == "die":
            os._exit(3)
        if how == "slow":
            time.sleep(3)
        if how == "hang":
            Server.hung = True
            time.sleep(600)
        self.send_response(500 if how in ("error", "cold") else 200)
        self.end_headers()
        self.wfile.write(json.dumps([{}] * (len(asked) - (how == "few"))).encode())

    def log_message(self, *args: object) -> None:
        pass


def pulse_on(workers: list[Ledger], cores: list[Ledger]) -> None:
    while True:
        time.sleep(0.2)
        for worker in workers:
            worker.write("pulse", c={}, beat=0, **IDLE)
        for rank, core in enumerate(cores):
            waits = Server.hung and rank == 0
            core.write(
                "pulse",
                c={"0": [2, 1] if waits else [1, 1]},
                beat=0,
                **IDLE,
                **({"w": WAITS} if waits else {}),
            )


def main() -> None:
    if not Server.hows:
        raise ValueError("nothing to do")
    # One that is a process of its own, to be paused; the engine cores are files only.
    child = os.fork()
    if child == 0:
        time.sleep(600)
    workers = [Ledger("worker", 0, child)]
    cores = [Ledger("engine core", rank, os.getpid()) for rank in (0, 1)]
    for rank, core in enumerate(cores):
        core.write("group", **DP, rank=rank)
    threading.Thread(target=pulse_on, args=(workers, cores), daemon=True).start()
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Server).serve_forever()


if __name__ == "__main__":
    main()
