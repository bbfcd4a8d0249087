"""Ways to make a job go wrong on purpose, each the twin of a real cause, at a chosen rank and moment.

The run names one in the environment variable `LOCKSTEP_FAULT` as JSON, `{"name": "late rank", "rank": 0,
...}`. Every process of the job has the variable; `arm` prepares what concerns the process that calls it.
Faults that come from outside of all processes (`outside.py`) and those that are in the data (`data.py`)
need no arming.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import Any

from lockstep.env import FAULT

RANK, WORKER = ("trainer", "rank"), ("rollout", "worker")

INSIDE: dict[str, dict[tuple[str, str], str]] = {
    "skipped collective": {RANK: "collectives:skip"},
    "extra collective": {RANK: "collectives:extra"},
    "other order": {RANK: "collectives:other_order"},
    "other size": {RANK: "collectives:other_size"},
    "vision tower left out": {RANK: "mixed_batch:undo_compat"},
    "reward raises": {RANK: "rank_trouble:reward_raises"},
    "extra eval batch": {RANK: "control_flow:extra_eval_batch"},
    "lone save": {RANK: "control_flow:lone_save"},
    "slow rank": {RANK: "rank_trouble:slow"},
    "slow storage": {RANK: "rank_trouble:slow_storage"},
    "rank dies": {RANK: "rank_trouble:dies"},
    "late rank": {WORKER: "late_rank:arm"},
    "broken image": {WORKER: "requests:broken_image"},
    "slow images": {WORKER: "requests:slow_images"},
    "prompt over the limit": {WORKER: "requests:over_limit"},
    "weight sync reaches one worker": {WORKER: "weight_sync:lost"},
    "client gives up": {RANK: "client:gives_up", WORKER: "client:answers_late"},
}
"""Fault -> the processes it needs (side, role) -> what arms it there, `module:function` in this package."""

OUTSIDE = frozenset({"worker stopped", "engine core killed", "rows without an image"})
"""Faults that no process of the job takes part in."""


def encode(fault: dict[str, Any]) -> str:
    """The value of `LOCKSTEP_FAULT` for a fault given as its arguments and its `name`."""
    return json.dumps(fault)


def arm(side: str, role: str) -> None:
    """Prepares the fault that the environment names, if it needs this process; call it after the probe is
    attached.
    """
    text = os.environ.get(FAULT)
    if not text:
        return
    fault = json.loads(text)
    name = fault.pop("name")
    if name not in INSIDE and name not in OUTSIDE:
        raise ValueError(
            f"{FAULT} names an unknown fault: {name!r}; known: {', '.join(sorted({*INSIDE, *OUTSIDE}))}"
        )
    if where := INSIDE.get(name, {}).get((side, role)):
        module, _, function = where.partition(":")
        getattr(import_module(f"lockstep.stacks.swift.inside.faults.{module}"), function)(**fault)


def tell(what: str) -> None:
    """Says in the process's log that the fault happens now."""
    print(f"lockstep: fault: {what}", flush=True)
