"""The releases of a package, in order, from the index that pip is configured for."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

ASK_S = 120.0


class ReleaseError(RuntimeError):
    """The releases cannot be listed or chosen; the message says why."""


def list_releases(package: str, *, pre: bool = False) -> list[Version]:
    """All releases of `package` that this Python can install, oldest first. Raises ReleaseError."""
    command = [*_pip(), "index", "versions", package, *(["--pre"] if pre else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"the releases of {package}: the index did not answer in {ASK_S:.0f} s") from error
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        last = (done.stderr.strip() or done.stdout.strip() or "no answer").splitlines()[-1]
        raise ReleaseError(f"the releases of {package} cannot be listed: {last}")
    return sorted(parse(word.strip()) for word in found[1].split(","))


def parse(release: str) -> Version:
    """Raises ReleaseError for what is no version."""
    try:
        return Version(release)
    except InvalidVersion as error:
        raise ReleaseError(f"{release!r}: expected a release such as 3.10.3") from error


def same(release: Version, other: Version) -> bool:
    """Whether both are one release: a post-release is the same again, packaged anew."""
    return _base(release) == _base(other)


def choose(
    releases: Iterable[Version],
    *,
    first: Version | None = None,
    last: Version | None = None,
    pre: bool = False,
    skip: Sequence[Version] = (),
) -> list[Version]:
    """Those from `first` to `last`, of each its highest post-release, oldest first. Raises ReleaseError when
    an end is none of them, or nothing is left."""
    known = list(releases)
    for end in (first, last):
        if end is not None and not any(same(end, release) for release in known):
            raise ReleaseError(f"there is no release {end}")
    latest: dict[Version, Version] = {}
    for release in sorted(known):
        base = _base(release)
        inside = (first is None or base >= _base(first)) and (last is None or base <= _base(last))
        if inside and (pre or not release.is_prerelease) and not any(same(release, one) for one in skip):
            latest[base] = release
    if not latest:
        raise ReleaseError(f"no release is left from {first or 'the first'} to {last or 'the last'}")
    return [latest[base] for base in sorted(latest)]


def _base(release: Version) -> Version:
    """`0.11.0.post2+cpu` -> 0.11.0; a pre-release stays one."""
    pre = "".join(map(str, release.pre)) if release.pre else ""
    dev = f".dev{release.dev}" if release.dev is not None else ""
    return Version(f"{release.base_version}{pre}{dev}")


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-I", "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "pip"]
    raise ReleaseError("neither pip nor uv is here to list releases with")
