"""A summary of earlier runs that is torn or something else: named, and nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import stand_in
from typer.testing import CliRunner

from lockstep import cli
from lockstep.experiments.faults import command, matrix
from lockstep.experiments.remedies import runs as remedy_runs
from lockstep.run.summary_file import RowsError, read_rows, write_rows

GARBAGE = [
    (b"", "not JSON: Expecting value"),
    (b'[{"fault": "none", "verd', "not JSON: "),
    (b"\xff\xfe\xfa", "not JSON: "),
    (b"{}", "no list: "),
    (b"[1]", "row 1 is none: "),
    (b'[{"a": 1, "b": 2}, {"a": 1}]', "row 2 is none: "),
]


@pytest.mark.parametrize(("data", "told"), GARBAGE)
def test_what_is_no_summary_is_named(tmp_path: Path, data: bytes, told: str) -> None:
    summary = tmp_path / "summary.json"
    summary.write_bytes(data)
    with pytest.raises(RowsError) as caught:
        read_rows(summary, ("a", "b"))
    assert str(caught.value).startswith(f"{summary}: {told}")
    assert "expected a list of objects with a, b, as earlier runs write it" in str(caught.value)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    summary = tmp_path / "new" / "summary.json"
    assert read_rows(summary, ("a", "b")) == {}
    rows = [{"a": "x", "b": 1, "c": None}, {"a": "y", "b": []}]
    write_rows(rows, summary)
    assert read_rows(summary, ("a", "b")) == {"x": rows[0], "y": rows[1]}
    assert [path.name for path in summary.parent.iterdir()] == ["summary.json"]


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where stack and model are taken to be in place, and no job may be run."""
    stand_in(monkeypatch, tmp_path)
    for module in (matrix, remedy_runs):
        monkeypatch.setattr(module, "run_job", lambda *_: pytest.fail("the job was run"))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [["faults", "--again"], ["faults", "--page", "page.md"], ["remedies"], ["remedies", "--page", "page.md"]],
)
def test_the_commands_say_so_and_exit_with_2(ready: Path, arguments: list[str]) -> None:
    summary = ready / ".lockstep" / arguments[0] / "summary.json"
    summary.parent.mkdir(parents=True)
    summary.write_text('[{"fault": "none", ')
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 2
    assert done.output.startswith(f"lockstep: {summary}: not JSON: ")
    assert summary.read_text() == '[{"fault": "none", '
    assert not (ready / "page.md").exists()


def test_a_whole_summary_goes_on_the_page(ready: Path) -> None:
    summary = ready / ".lockstep" / "faults" / "summary.json"
    write_rows([{"fault": "late rank", "verdict": "-", "wrong": "it did not start"}], summary)
    page = ready / "page.md"
    (row,) = command.run("cpu", out=summary.parent, only=[], again=True, page=page)
    assert row["fault"] == "late rank"
    assert "not run: it did not start" in page.read_text()
