"""Reads the scripts that launch a job and says what in them can make it hang, without running anything of
them.

    job = from_paths([Path("launch.sh")], {"vllm": "0.11.0"})
    for finding in findings(job): ...

Knows ms-swift (rollout, rlhf, sft), trl vllm-serve and vllm serve, as people write them: bash with or without
its line continuations,
variables, functions, loops, SLURM files, docker run, ssh, torchrun. Every finding names the line, the reason,
and the file of the release in
which the fact behind it can be read. Needs none of the stack.
"""

from __future__ import annotations

from lockstep.audit.checks import run as findings
from lockstep.audit.job import from_paths, from_texts
from lockstep.audit.model import AuditError, Finding, Job, Severity

__all__ = ["AuditError", "Finding", "Job", "Severity", "findings", "from_paths", "from_texts"]
