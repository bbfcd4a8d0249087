"""Mutated scripts: no crash, no hang, and an answer or an AuditError each time."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from audits import SCRIPTS, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.audit import AuditError, findings, from_texts
from lockstep.audit.fix import fix
from lockstep.audit.output import to_json
from lockstep.audit.shell.text import decode

SEEDS = [read(path.name) for path in sorted(SCRIPTS.iterdir()) if path.suffix in (".sh", ".txt", ".sbatch")]
TOKENS = [
    "\n",
    "\\\n",
    "'",
    '"',
    "`",
    "$(",
    ")",
    "${",
    "}",
    "$((",
    "))",
    "<<EOF\n",
    "EOF\n",
    "&",
    "&&",
    "|",
    ";",
    ";;",
    "(",
    "{",
    "}\n",
    "if ",
    "then ",
    "fi\n",
    "for i in 1 2; do ",
    "done\n",
    "case $x in ",
    "esac\n",
    "f() { ",
    "f\n",
    "#",
    "\r",
    "\t",
    "=",
    "A=$A$A\n",
    "swift rollout ",
    "swift rlhf ",
    "--port ",
    "--x=",
    "bash -c '",
    'bash -c "',
    "eval ",
    "docker run -e ",
    "env ",
    "srun ",
    "ssh h ",
    "sleep 100\n",
    "export ",
    "[",
    "]",
    "*",
    "\u3000",
    "端口",
    "\x1b[0m",
    "9" * 30,
    "-",
    "--",
    "$@",
    "$1",
    "\\",
]
EXAMPLES = int(os.environ.get("LOCKSTEP_FUZZ_EXAMPLES", "150"))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from([*SEEDS, ""]))
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.sampled_from([0, 0, 1, 3, 40, 400])))
        text = text[:at] + draw(st.one_of(st.sampled_from(TOKENS), st.text(max_size=6))) + text[end:]
    return text


@settings(max_examples=EXAMPLES, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_mutated_scripts(text: str) -> None:
    try:
        job = from_texts([("x.sh", text)])
    except AuditError:
        return
    found = findings(job, 5559)
    lines = text.count("\n") + text.count("\r") + 1
    assert all(1 <= finding.place.line <= lines for finding in found)
    json.dumps(to_json(job, found))
    (fixed,), _ = fix([("x.sh", text)])
    findings(from_texts([("x.sh", fixed.text)]))


@settings(max_examples=EXAMPLES, deadline=2000)
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    with suppress(AuditError):
        findings(from_texts([("x", decode(data, "x"))]))
