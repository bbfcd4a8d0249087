"""Scripts that were made to be slow: an answer or a named limit, after work that a script's size bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from lockstep.audit import AuditError, findings, from_texts
from lockstep.audit.output import to_json

SERVER = "swift rollout --model m --port 8001 &\n"
SIZE = 24_000
"""Bytes of each script."""
LIMIT_S = 12.0
"""CPU for one of them. Each takes under 3 s, in which time that grows with the square would not do."""


def filled(form: str, size: int) -> str:
    """Copies of `form` up to a size, each with a number in place of its %."""
    copies = []
    while size > 0:
        copies.append(form.replace("%", str(len(copies))))
        size -= len(copies[-1])
    return "".join(copies)


SCRIPTS: dict[str, Callable[[int], str]] = {
    "a script in a script in a script": lambda n: (
        'bash -c "' + filled("bash -c 'echo %; x'\n", n) + '"\n' + SERVER
    ),
    "one long argument of bash -c": lambda n: 'bash -c "' + filled("echo %; ", n) + '"\n' + SERVER,
    "a function that starts a shell": lambda n: (
        "f() { bash -c 'echo " + filled("a ", n // 2) + "'; }\n" + filled("f\n", n // 2) + SERVER
    ),
    "heredocs without end": lambda n: filled("bash <<E%\n", n) + SERVER,
    "substitutions in one another": lambda n: "A=" + "$(" * (n // 3) + ")" * (n // 3) + "\n" + SERVER,
    "empty lines": lambda n: "\n" * n + SERVER,
    "functions": lambda n: filled("f%() { echo; }\nf%\n", n) + SERVER,
    "assignments and commands": lambda n: filled("A%=1\n", n // 2) + "echo\n" * (n // 10) + SERVER,
    "one branch after another": lambda n: filled("if x%; then A%=1; fi\n", n) + SERVER,
    "one case of many": lambda n: "case $x in\n" + filled("a%) B%=1;;\n", n) + "esac\n" + SERVER,
    "sourced files": lambda n: filled("source f%.sh\n", n) + SERVER,
    "a doubled value that is used": lambda n: "A='x '\n" + "A=$A$A\n" * 15 + filled("echo $A\n", n) + SERVER,
    "a doubled unknown that is passed": lambda n: "A='$B '\n" + "A=$A$A\n" * 14 + "swift rollout $A\n" * 150,
    "a value that grows": lambda n: "A+=x\n" * (n // 5) + SERVER,
    "many variables for many processes": lambda n: (
        filled("VLLM_%=1\n", n // 2) + filled("export B%=2\n", n // 2) + SERVER * 150
    ),
    "one option with many values": lambda n: "swift rollout --model " + "x " * (n // 2),
    "options that lost their backslash": lambda n: "swift rollout\n" + filled("--o% 1\n", n),
    "assignments above a command": lambda n: (
        filled("A%=1\n", n // 2) + "swift rollout\n" + filled("--o% $B%\n", n // 2)
    ),
    "many GPUs": lambda n: (
        f"CUDA_VISIBLE_DEVICES={filled('%,', n // 2)} {SERVER}"
        f"CUDA_VISIBLE_DEVICES={filled('1%,', n // 2)} swift rlhf --model m\n"
    ),
    "quotes that stay open": lambda n: filled("it's %\n", n) + SERVER,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_was_made_to_be_slow_is_answered_or_refused_by_a_named_limit(name: str) -> None:
    text = SCRIPTS[name](SIZE)
    begun = time.process_time()
    try:
        job = from_texts([("x.sh", text)])
    except AuditError as error:
        answer = str(error)
    else:
        answer = json.dumps(to_json(job, findings(job)))
    assert time.process_time() - begun < LIMIT_S
    assert 0 < len(answer) < 1000 * SIZE


def test_a_script_of_usual_size_is_far_below_the_limit() -> None:
    usual = "".join(
        f'export NCCL_A{i}=1\nB{i}=$A{i}\nif [ -n "$B{i}" ]; then echo $B{i}; fi\n' for i in range(80)
    )
    job = from_texts([("x.sh", usual + SERVER)])
    assert len(job.processes) == 1
