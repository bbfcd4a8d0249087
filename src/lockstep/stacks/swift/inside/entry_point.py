"""Entry point `torch.backends`: torch calls `register` when it has been imported, in every process of the
environment.

For the one thing that ms-swift's plugins come too late for: trainer rank 0 connects to the rollout, and makes
the weight-sync group, while it parses its arguments, before it loads any plugin
(`RLHFArguments._init_external_vllm`, ms-swift 3.10.3). Does nothing in a process that no run of Lockstep has
started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def register() -> None:
    if "LOCKSTEP_RUN_DIR" in os.environ and Path(sys.argv[0]).name == "rlhf.py":
        from lockstep.inside.hooks import after_import
        from lockstep.stacks.swift.compat import place

        after_import(place("client"), _prepare_client)


def _prepare_client() -> None:
    from lockstep.stacks.swift.inside import cpu, group_port, trainer

    if os.environ.get(cpu.DEVICES):
        cpu.apply_client()
    group_port.choose_group_port()
    trainer.watch_client()
