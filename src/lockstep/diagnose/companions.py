"""What lies beside logs: launch scripts and lists of packages. They are recognised by content and used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from lockstep.diagnose.events import Mark, Origin
from lockstep.diagnose.model import Evidence
from lockstep.diagnose.scan import Scan

_MAX_SCRIPT = 1 << 16
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]{0,80})==(\d[\w.+!-]{0,60})\s*$")
_STARTS = re.compile(
    r"^\s*(?:[A-Z_][A-Z0-9_]*=\S* +)*(?:nohup |exec |srun .{0,200}?)?"
    r"(?:torchrun|accelerate launch|deepspeed|swift (?:rollout|rlhf|sft|pt)|trl vllm-serve|vllm serve"
    r"|python3? -m (?:torch\.distributed|accelerate|deepspeed|vllm|swift|trl)\b)",
    re.M,
)
_NAMES = (".sh", ".bash", ".slurm", ".sbatch")


@dataclass(frozen=True)
class Companions:
    """`findings` are what the audit says of the scripts, `marks` the releases that a list of packages names,
    `notes` by file what it was taken for.
    """

    findings: tuple[Evidence, ...]
    marks: tuple[Mark, ...]
    notes: dict[str, str]


def companions(scans: Sequence[Scan]) -> Companions:
    """Return what the files say that are no logs. Files in which a failure was read are logs whatever they
    hold.
    """
    scripts: list[tuple[str, str]] = []
    pins: dict[str, str] = {}
    marks: list[Mark] = []
    notes: dict[str, str] = {}
    for scan in scans:
        if scan.bytes > _MAX_SCRIPT or any(isinstance(e, Mark) and e.failure for e in scan.events):
            continue
        text = scan.head.decode("utf-8", "replace")
        if found := _packages(text):
            pins.update((name, release) for name, (release, _) in found.items())
            if "vllm" in found:
                release, line = found["vllm"]
                quote = f"vllm=={release}"
                marks.append(Mark(scan.file, line, quote, Origin(), "version", release))
            notes[scan.file] = f"a list of {len(found)} packages: its releases are used"
        elif _is_script(scan.file, text):
            scripts.append((scan.file, text))
            notes[scan.file] = "a launch script: audited"
    return Companions(_audited(scripts, pins, notes), tuple(marks), notes)


def _packages(text: str) -> dict[str, tuple[str, int]]:
    """Return releases and lines by package if a text is what `pip freeze` prints."""
    found: dict[str, tuple[str, int]] = {}
    lines = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith(("#", "-e ")):
            continue
        lines += 1
        if pin := _PIN.match(line):
            found[pin.group(1).lower().replace("_", "-")] = pin.group(2), number
    return found if lines >= 2 and len(found) * 10 >= lines * 8 else {}


def _is_script(path: str, text: str) -> bool:
    named = PurePath(path).suffix in _NAMES or text.startswith("#!")
    return bool(_STARTS.search(text)) and (named or "%|" not in text)


def _audited(
    scripts: list[tuple[str, str]], pins: dict[str, str], notes: dict[str, str]
) -> tuple[Evidence, ...]:
    if not scripts:
        return ()
    from lockstep.audit import AuditError, findings, from_texts

    try:
        found = findings(from_texts(scripts, pins or None))
    except AuditError as error:
        notes[scripts[0][0]] = f"a launch script that could not be audited: {error}"
        return ()
    return tuple(
        Evidence(f"{finding.severity.value}: {finding.title}", finding.place.path, finding.place.line)
        for finding in found
    )
