"""What a release asks for when it starts, and which release it gets for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from lockstep.bisect import environment, releases
from lockstep.bisect import probe as probing
from lockstep.bisect.companions import asked_for, nearest
from lockstep.bisect.probe import MOVES, Question

SAID = (
    "rank 1 ended with status 1: ImportError: trl>=0.26 is required for a normal functioning of this module, "
    "but found trl==0.24.0."
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (SAID, "trl>=0.26"),
        (
            "E: peft>=0.11,<0.20 is required for a normal functioning of this module, but found peft==0.10",
            None,
        ),
        ("ImportError: trl>=0.26 is needed", ""),
        (
            "ImportError: trl>=0.26 is required for a normal functioning of this module, but found peft==1.",
            "",
        ),
        ("ImportError: trl>=x.y is required for a normal functioning of this module, but found trl==1.", ""),
    ],
)
def test_what_is_asked_for(text: str, wanted: str | None) -> None:
    expected = Requirement("peft>=0.11,<0.20" if wanted is None else wanted) if wanted != "" else None
    assert asked_for(["nothing", text]) == expected


@pytest.mark.parametrize(
    ("wanted", "now", "found"),
    [("trl>=0.26", "0.24.0", "0.26.0"), ("trl<0.24", "0.24.0", "0.23.1"), ("trl>=2", "0.24.0", None)],
)
def test_it_moves_as_little_as_possible(wanted: str, now: str, found: str | None) -> None:
    known = [Version(x) for x in ("0.26.2", "0.22.0", "0.23.1", "0.24.0", "0.26.0", "0.26.0rc1")]
    expected = Version(found) if found else None
    assert nearest(Requirement(wanted), known, Version(now)) == expected


class Stack:
    """Environments that are only pretended; starts where trl is at least `needs`."""

    def __init__(self, needs: str, never: bool = False) -> None:
        self.needs, self.never, self.built = Version(needs), never, []  # type: ignore[var-annotated]

    def build(self, device: str, want: dict[str, str], folder: Path, source: Any = None) -> Any:
        self.built.append(dict(want))
        trl = want.get("trl", "0.24.0")
        moved = {"trl": ("0.24.0", trl)} if trl != "0.24.0" else {}
        return environment.Environment(Path("python"), {**want, "trl": trl}, moved)

    def run(self, question: Question, built: environment.Environment, out: Path) -> dict[str, Any]:
        found = built.lock["trl"]
        if self.never or Version(found) < self.needs:
            return {
                "failure": f"ImportError: trl>={self.needs} is required for a normal functioning "
                f"of this module, but found trl=={found}."
            }
        return {"verdict": "stuck", "group": "rollout.dp", "sentence": "it hangs"}


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Stack:
    stack = Stack("0.26")
    monkeypatch.setattr(environment, "build", stack.build)
    monkeypatch.setattr(probing, "_run", stack.run)
    known = [Version(f"0.{minor}.0") for minor in range(20, 30)]
    monkeypatch.setattr(releases, "list_releases", lambda name: known)
    return stack


def test_the_release_is_tried_again_with_what_it_asks_for(stack: Stack, tmp_path: Path) -> None:
    one = probing.probe(Question("ms-swift"), "4.2.0", tmp_path)
    assert (one.outcome, one.reason) == ("bad", "it hangs")
    assert stack.built == [{"ms-swift": "4.2.0"}, {"ms-swift": "4.2.0", "trl": "0.26.0"}]
    assert one.moved == {"trl": ("0.24.0", "0.26.0")}
    assert one.wanted == {}


def test_one_that_starts_is_tried_once(stack: Stack, tmp_path: Path) -> None:
    stack.needs = Version("0.24")
    assert probing.probe(Question("ms-swift"), "3.12.6", tmp_path).outcome == "bad"
    assert len(stack.built) == 1


def test_what_the_user_asked_for_is_not_moved(stack: Stack, tmp_path: Path) -> None:
    one = probing.probe(Question("ms-swift", wanted={"trl": "0.25.0"}), "4.2.0", tmp_path)
    assert one.outcome == "untestable"
    assert "trl>=0.26 is required" in one.reason
    assert len(stack.built) == 1


def test_it_ends_with_a_release_that_is_never_content(stack: Stack, tmp_path: Path) -> None:
    stack.never = True
    assert probing.probe(Question("ms-swift"), "4.2.0", tmp_path).outcome == "untestable"
    assert len(stack.built) == 2 <= MOVES + 1
