"""What `lockstep audit` does: the arguments in, an exit code out."""

from __future__ import annotations

import sys
from pathlib import Path

from lockstep.audit import cures
from lockstep.audit.checks import run
from lockstep.audit.fix import fix as corrected
from lockstep.audit.job import from_texts
from lockstep.audit.model import AuditError
from lockstep.audit.output import has_hazard, show, to_json
from lockstep.audit.shell.text import read
from lockstep.audit.versions import from_file
from lockstep.report.safe_text import json_text, lines, one_line


def audit(
    scripts: list[Path],
    versions: Path | None,
    step: int | None,
    *,
    as_json: bool = False,
    fix: bool = False,
    remedy: str | None = None,
) -> int:
    """Audits scripts and prints the result. 0 without a hazard, 1 with one; raises AuditError for input that
    cannot be audited."""
    if remedy is not None and remedy not in cures.CURES:
        raise AuditError(f"--remedy {remedy}: no such remedy: expected one of {', '.join(cures.CURES)}")
    if remedy is not None and not fix:
        raise AuditError(f"--remedy {remedy}: expected together with --fix, which it is for")
    texts = [(str(path), read(path)) for path in dict.fromkeys(scripts)]
    pinned = from_file(versions) if versions else None
    job = from_texts(texts, pinned)
    findings = run(job, step)
    fixed, left = corrected(texts, pinned, remedy) if fix else ([], [])
    if as_json:
        result = to_json(job, findings)
        if fix:
            result["fix"] = {
                "files": [{"file": f.path, "diff": f.diff} for f in fixed if f.diff],
                "by_hand": left,
            }
        print(json_text(result))
    elif fix:
        diff = "".join(f.diff for f in fixed)
        sys.stdout.write(diff)
        if lines(diff) != diff:
            left = [
                *left,
                "control characters of the scripts are spelled out: patch may refuse the diff",
            ]
        for line in left:
            print(f"lockstep: {one_line(line)}", file=sys.stderr)
    else:
        show(job, findings)
    return 1 if has_hazard(findings) else 0
