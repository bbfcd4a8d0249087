"""Ways to make a job go wrong on purpose, each from outside, at a chosen rank and moment.

The run names one in the environment variable `LOCKSTEP_FAULT` as JSON: `{"name": "late rank", "rank": 0, ...}`.
"""

from __future__ import annotations

import json
import os
from typing import Any

FAULT = "LOCKSTEP_FAULT"


def encode(fault: dict[str, Any]) -> str:
    """The value of `LOCKSTEP_FAULT` for a fault given as its arguments and its `name`."""
    return json.dumps(fault)


def arm() -> None:
    """Prepares the fault that the environment names, in the process it is for; nothing when it names none."""
    text = os.environ.get(FAULT)
    if not text:
        return
    fault = json.loads(text)
    name = fault.pop("name")
    if name == "late rank":
        from lockstep.faults import late_rank

        late_rank.arm(**fault)
    else:
        raise ValueError(f"{FAULT} names an unknown fault: {name!r}")
