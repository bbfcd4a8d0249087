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

from lockstep.env import RUN_DIR


def register() -> None:
    """Prepare trainer rank 0 of a run; do nothing in any other process.

    What is raised here makes `import torch` fail. So nothing is, but in a run's own trainer where Lockstep
    does not find what it needs (HookError): the run has to fail then, and to say why.
    """
    if RUN_DIR not in os.environ:
        return
    program = next(iter(getattr(sys, "argv", None) or ()), "")
    if os.path.basename(str(program)) != "rlhf.py":  # noqa: PTH119 - pathlib is not there yet, and costs
        return
    from lockstep.inside.hooks import HookError, after_import
    from lockstep.inside.writer import complain

    try:
        from lockstep.stacks.swift.compat import place

        after_import(place("client"), _prepare_client)
    except HookError:
        raise
    except Exception as error:  # whatever is wrong with the probe, the job comes first
        complain(f"cannot watch this process: {type(error).__name__}: {error}")


def _prepare_client() -> None:
    from lockstep.env import CPU
    from lockstep.stacks.swift.inside import cpu, group_port, trainer

    if os.environ.get(CPU):
        cpu.apply_client()
    group_port.choose_group_port()
    trainer.watch_client()
