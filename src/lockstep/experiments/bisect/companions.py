"""Packages that a release asks for when it starts, not in its metadata: no resolver can know of them.

ms-swift 4.0 to 4.2 are such releases: their metadata allow trl 0.24, their modules want 0.26.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

_WANTED = re.compile(
    r"([\w.-]+ *[<>=!~][^\n:]*) is required for a normal functioning of this module, but found ([\w.-]+)=="
)
"""transformers 4.57.1, `transformers/utils/versions.py:_compare_versions`; trl and ms-swift call it too."""


def asked_for(texts: Iterable[str]) -> Requirement | None:
    """The first package that a process said it needs in another release than it found."""
    for text in texts:
        for found in _WANTED.finditer(text):
            try:
                wanted = Requirement(found[1])
            except InvalidRequirement:
                continue
            if canonicalize_name(wanted.name) == canonicalize_name(found[2]):
                return wanted
    return None


def nearest(wanted: Requirement, known: Iterable[Version], now: Version) -> Version | None:
    """The release next to `now` that `wanted` allows: the first from there on, else the last before."""
    allowed = sorted(one for one in known if wanted.specifier.contains(one))
    above = [one for one in allowed if one >= now]
    return above[0] if above else allowed[-1] if allowed else None
