"""Which releases there are, and which of them are meant."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from packaging.version import Version

from lockstep.experiments.bisect import releases
from lockstep.experiments.bisect.releases import ReleaseError, choose, list_releases, parse, same

V = Version
KNOWN = [V(x) for x in ("0.9.2", "0.10.0", "0.10.0.post2", "0.10.1", "0.11.0rc1", "0.11.0", "0.11.0.post2")]


def names(**chosen: Any) -> list[str]:
    return [str(release) for release in choose(KNOWN, **chosen)]


def test_a_post_release_stands_for_its_release_and_pre_releases_are_left_out() -> None:
    assert names() == ["0.9.2", "0.10.0.post2", "0.10.1", "0.11.0.post2"]
    assert names(pre=True) == ["0.9.2", "0.10.0.post2", "0.10.1", "0.11.0rc1", "0.11.0.post2"]


def test_the_ends_are_included_however_they_are_packaged() -> None:
    assert names(first=V("0.10.0"), last=V("0.11.0")) == ["0.10.0.post2", "0.10.1", "0.11.0.post2"]
    assert names(first=V("0.10.0.post2"), skip=[V("0.10.1")]) == ["0.10.0.post2", "0.11.0.post2"]
    assert same(V("0.11.0.post2+cpu"), V("0.11.0"))
    assert not same(V("0.11.0rc1"), V("0.11.0"))


def test_an_end_that_is_no_release_and_an_empty_range_are_refused() -> None:
    with pytest.raises(ReleaseError, match=r"there is no release 0\.12\.0"):
        names(last=V("0.12.0"))
    with pytest.raises(ReleaseError, match=r"no release is left from 0\.11\.0 to 0\.9\.2"):
        names(first=V("0.11.0"), last=V("0.9.2"))
    with pytest.raises(ReleaseError, match=r"'newest': expected a release such as"):
        parse("newest")


def answer(monkeypatch: pytest.MonkeyPatch, out: str, err: str = "", code: int = 0) -> list[list[str]]:
    asked = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(releases.subprocess, "run", run)
    monkeypatch.setattr(releases, "_pip", lambda: ["pip"])
    return asked


def test_the_list_is_sorted_as_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch, "thing (0.10.0)\nAvailable versions: 0.10.0, 0.9.0\n  INSTALLED: 0.9.0\n")
    assert list_releases("thing") == [V("0.9.0"), V("0.10.0")]
    list_releases("thing", pre=True)
    assert asked == [["pip", "index", "versions", "thing"], ["pip", "index", "versions", "thing", "--pre"]]


def test_an_index_without_the_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "", "WARNING: experimental\nERROR: No matching distribution found for thing\n", 1)
    with pytest.raises(
        ReleaseError, match=r"releases of thing cannot be listed: ERROR: No matching distribution"
    ):
        list_releases("thing")
