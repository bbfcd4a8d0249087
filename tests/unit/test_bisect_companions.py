"""What a release asks for when it starts, and which release it gets for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from lockstep.experiments.bisect import environment, releases
from lockstep.experiments.bisect import probe as probing
from lockstep.experiments.bisect.companions import asked_for, nearest
from lockstep.experiments.bisect.probe import MOVES, Question


def said(wanted: str, found: str) -> str:
    """transformers' words."""
    return f"ImportError: {wanted} is required for a normal functioning of this module, but found {found}."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rank 1 ended with status 1: " + said("trl>=0.26", "trl==0.24.0"), "trl>=0.26"),
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

    def build(self, device: str, want: dict[str, str], folder: Path, source: Any = None, *_: object) -> Any:
        self.built.append(dict(want))
        trl = want.get("trl", "0.24.0")
        moved = {"trl": ("0.24.0", trl)} if trl != "0.24.0" else {}
        return environment.Environment(Path("python"), {"peft": "0.28.0", **want, "trl": trl}, moved)

    def run(self, question: Question, built: environment.Environment, out: Path) -> dict[str, Any]:
        found = built.lock["trl"]
        if self.never or Version(found) < self.needs:
            return {"failure": said(f"trl>={self.needs}", f"trl=={found}")}
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


def test_a_package_that_is_not_pinned_is_moved_from_where_it_is(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(question: Question, built: environment.Environment, out: Path) -> dict[str, Any]:
        if built.lock["peft"] == "0.28.0":
            return {"failure": said("peft>=0.11,<0.28", "peft==0.28.0")}
        return {"verdict": "stuck", "group": "rollout.dp", "sentence": "it hangs"}

    monkeypatch.setattr(probing, "_run", run)
    assert probing.probe(Question("ms-swift"), "4.2.0", tmp_path).outcome == "bad"
    assert stack.built[-1]["peft"] == "0.27.0"


def test_one_after_another_but_not_for_ever(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"p{i}" for i in range(9)]
    monkeypatch.setattr(
        environment,
        "build",
        lambda device, want, *_: (
            stack.built.append(dict(want))
            or environment.Environment(Path("p"), dict.fromkeys(names, "0.20"), {})
        ),
    )

    def run(question: Question, built: environment.Environment, out: Path) -> dict[str, Any]:
        name = names[len(stack.built) - 1]
        return {"failure": said(f"{name}>0.21", f"{name}==0.20")}

    monkeypatch.setattr(probing, "_run", run)
    assert probing.probe(Question("ms-swift"), "4.2.0", tmp_path).outcome == "untestable"
    assert len(stack.built) == 1 + MOVES


def test_what_is_no_package_of_the_environment_is_not_moved(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = said("python>=3.12", "python==3.11")
    monkeypatch.setattr(probing, "_run", lambda *_: {"failure": failure})
    assert probing.probe(Question("ms-swift"), "4.2.0", tmp_path).reason == failure
    assert len(stack.built) == 1


def test_a_companion_that_cannot_be_had_does_not_hide_the_reason(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = stack.build

    def refuse(device: str, want: dict[str, str], folder: Path, source: Any = None, *_: object) -> Any:
        if "trl" in want:
            raise environment.BuildError("No solution found")
        return build(device, want, folder, source)

    monkeypatch.setattr(environment, "build", refuse)
    one = probing.probe(Question("ms-swift"), "4.2.0", tmp_path)
    assert one.outcome == "untestable"
    assert one.reason.startswith("ImportError: trl>=0.26 is required")
    assert one.reason.endswith("; trl 0.26.0, which it asks for, cannot be installed: No solution found")


def test_an_index_that_does_not_answer_leaves_the_reason(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(name: str) -> Any:
        raise releases.ReleaseError("no answer")

    monkeypatch.setattr(releases, "list_releases", silent)
    assert "trl>=0.26 is required" in probing.probe(Question("ms-swift"), "4.2.0", tmp_path).reason


def test_what_this_machine_lacks_is_not_the_releases_fault(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nprintf \'{"failure": "the disk is full", "here": true}\' > runs/answer.json\n'
    )
    python.chmod(0o700)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(environment, "build", lambda *_: environment.Environment(python.resolve(), {}, {}))
    with pytest.raises(environment.ToolError, match="the disk is full"):
        probing.probe(Question("ms-swift"), "4.2.0", Path())
