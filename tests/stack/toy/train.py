"""A rank of the toy job: eight steps of one all-reduce each, an evaluation and a save in the middle."""

from __future__ import annotations

import json
import os
import queue
import sys

import torch
import torch.distributed as dist

from lockstep import env
from lockstep.inside.attach import attach

STEPS = int(sys.argv[1])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    probe = attach("trainer", "rank", rank)
    assert probe is not None
    fault = json.loads(os.environ.get(env.FAULT, "null")) or {}
    numbers = torch.ones(4)
    probe.boundary("train begin")
    for step in range(1, STEPS + 1):
        if fault.get("rank") == rank and fault.get("step") == step:
            queue.Queue[int]().get()  # the rank that leaves its peers alone
        dist.all_reduce(numbers)
        probe.boundary("step", step)
        if step == STEPS // 2:
            for name in ("eval", "save"):
                probe.boundary(f"{name} begin", step)
                dist.all_gather([torch.zeros(4) for _ in range(dist.get_world_size())], numbers)
                probe.boundary(f"{name} end", step)
    probe.boundary("train end")
    probe.close()
    dist.destroy_process_group()


main()
