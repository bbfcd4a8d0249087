"""Takes secrets and home folders out of what is handed on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

SECRET_NAME = re.compile(r"(?i)token|secret|passw|api_?key|access_?key|private_?key|credential|auth")
"""Names of variables whose values are secret."""
LEAST_SECRET = 8
"""Shorter values are left: `true` and `1` would be taken out of every line."""
HIDDEN = b"[hidden]"
_PATTERNS = [
    re.compile(rb"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,})"),
    re.compile(rb"\b(?:sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|xox[abpr]-[\w-]{10,})"),
    re.compile(rb"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
    re.compile(rb"(?<=://)[^/\s:@'\"]+:[^/\s@'\"]+(?=@)"),
]
"""Keys as their makers write them, and a name with its password in an address."""
_NAMED = re.compile(
    rb"(?i)((?:token|secret|password|passwd|api_?key|access_?key)['\"]?\s*[=:]\s*['\"]?)([^\s'\",;&]{8,})"
)


class Redactor:
    """Knows this process's secrets, home folder and checkout."""

    def __init__(
        self, env: Mapping[str, str] = os.environ, home: Path | None = None, checkout: Path | None = None
    ) -> None:
        values = {
            value for name, value in env.items() if SECRET_NAME.search(name) and len(value) >= LEAST_SECRET
        }
        self._secrets = sorted((value.encode() for value in values), key=len, reverse=True)
        folders = [(checkout or Path.cwd(), b"."), (home or Path.home(), b"~")]
        named = [(str(folder).encode(), short) for folder, short in folders if len(folder.parts) > 1]
        # A checkout lies in the home folder, as a rule: it is longer, and goes first.
        self._folders = sorted(named, key=lambda pair: len(pair[0]), reverse=True)

    def text(self, data: bytes) -> bytes:
        """For lines that a person reads; their length may change."""
        return self._redact(data, lambda found, instead: instead)

    def binary(self, data: bytes) -> bytes:
        """For a format that counts its bytes (pickled dumps): nothing moves."""
        return self._redact(data, lambda found, instead: instead[: len(found)].ljust(len(found), b"x"))

    def _redact(self, data: bytes, fit: Callable[[bytes, bytes], bytes]) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, fit(secret, HIDDEN))
        for pattern in _PATTERNS:
            data = pattern.sub(lambda match: fit(match[0], HIDDEN), data)
        data = _NAMED.sub(lambda match: match[1] + fit(match[2], HIDDEN), data)
        for folder, short in self._folders:
            data = data.replace(folder, fit(folder, short))
        return data
