"""The list of causes, its page, and the commands that end in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lockstep
from lockstep import causes, cli
from lockstep.causes import CAUSES
from lockstep.remedies.tried import TRIED
from lockstep.report.terminal import render
from lockstep.verdict import Kind, Verdict

PACKAGE = Path(lockstep.__file__).parent


def test_the_page_is_made_from_the_list() -> None:
    assert Path("docs/causes.md").read_text() == causes.page()


def test_every_cause_has_something_to_do() -> None:
    for cause in CAUSES.values():
        assert cause.remedies
        assert not cause.sentence.endswith(".")


def test_every_cause_that_the_verdict_names_is_in_the_list() -> None:
    source = (PACKAGE / "verdict" / "cause.py").read_text()
    named = set(re.findall(r'return "([a-z]+(?:-[a-z]+)+)"', source))
    assert {"rank-died", "offline-wave-race", "request-failed"} <= named <= set(CAUSES)


def test_a_verdict_with_a_cause_says_what_to_do_before_the_evidence() -> None:
    verdict = Verdict(
        Kind.STUCK, "rank 0 waits for rank 1", cause="offline-wave-race", evidence=("its engine is idle",),
        passed={"trainer rank": {"step": 1}},
    )  # fmt: skip
    first, *rest = render(verdict).splitlines()
    assert first.startswith("stuck  rank 0 waits")
    assert rest[0].strip().startswith("cause: offline-wave-race: a rollout wave ended while")
    (advice,) = (line for line in rest if "do first" in line)
    assert "lockstep remedy independent-ranks -o independent_ranks.py" in advice
    assert rest.index(advice) < next(i for i, line in enumerate(rest) if "passed by every" in line)


def test_a_verdict_without_a_cause_advises_nothing() -> None:
    assert "do first" not in render(Verdict(Kind.IN_STEP, "every rank issued the same"))


def test_the_remedies_are_listed_by_the_id_that_writes_their_file() -> None:
    done = CliRunner().invoke(cli.app, ["remedy"])
    assert done.exit_code == 0
    for remedy in TRIED:
        assert (f"\n{remedy.id}" in f"\n{done.output}") == (remedy.kind != "none")


@pytest.mark.parametrize("name", ["independent-ranks", "open_wave"])
def test_a_remedy_is_written_as_one_file(tmp_path: Path, name: str) -> None:
    to = tmp_path / "mine.py"
    done = CliRunner().invoke(cli.app, ["remedy", name, "-o", str(to)])
    assert done.exit_code == 0, done.output
    assert to.read_text() == (PACKAGE / "remedies" / f"{name.replace('-', '_')}.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["prayer"], "no remedy is named 'prayer'; there are: independent-ranks, "),
        (["tensor-parallel", "-o", "x.py"], "tensor-parallel is no file but a setting"),
        (["independent-ranks", "-o", "there.py"], "there.py: it is there already"),
        (["independent-ranks", "-o", "no/folder/x.py"], "cannot be written: No such file"),
        (["-o", "x.py"], "--output needs the id of a remedy"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.py").write_text("mine")
    done = CliRunner().invoke(cli.app, ["remedy", *arguments])
    assert done.exit_code == 2
    assert told in done.output
    assert Path("there.py").read_text() == "mine"
    assert not Path("x.py").exists()
