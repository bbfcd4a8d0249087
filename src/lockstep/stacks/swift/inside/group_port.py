"""Lets the run choose the weight-sync group's port, in the trainer's main rank.

`VLLMClient` (ms-swift 3.10.3, `swift/trainers/rlhf_trainer/vllm_client.py`) takes `group_ports`, 51216 by
default, and ms-swift has no argument for it: two jobs on one host would meet there.
"""

from __future__ import annotations

import os
from typing import Any

from lockstep.env import WEIGHT_SYNC_PORT
from lockstep.inside.hooks import wrap
from lockstep.stacks.swift.compat import place


def choose_group_port() -> None:
    port = os.environ.get(WEIGHT_SYNC_PORT)
    if not port:
        return

    def make(original: Any, *args: Any, **kwargs: Any) -> None:
        ports = [int(one) for one in port.split(",")]
        if kwargs.get("group_ports") is None:  # ms-swift 4 passes None on
            kwargs["group_ports"] = ports if len(ports) > 1 else ports[0]
        original(*args, **kwargs)

    wrap(f"{place('client')}:VLLMClient.__init__", make)
