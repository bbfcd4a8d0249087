"""The catalogue of faults, what arms them, and how a row of the matrix is judged."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledgers import Job, incident, whole_job
from typer.testing import CliRunner

from lockstep import cli
from lockstep.experiments.faults import matrix
from lockstep.experiments.faults.matrix import wrong
from lockstep.experiments.faults.page import write_page
from lockstep.fixtures.shapes import check_dataset, write_shapes
from lockstep.record import read_directory
from lockstep.run.supervise import Outcome
from lockstep.stacks.judging import judge
from lockstep.stacks.swift.faults import FAULTS, Expected, Fault
from lockstep.stacks.swift.inside import faults
from lockstep.stacks.swift.mixed_data import without_images
from lockstep.stacks.swift.spec import JobSpec, cpu_job
from lockstep.verdict import BoundaryView, GroupView, Kind, RankView, Verdict

ROOM = Path(faults.__file__).parent
ARMED = [(name, where) for name, places in faults.INSIDE.items() for where in places.values()]


def parameters(where: str) -> list[str]:
    """Of `module:function`, read from the source: the modules import the stack."""
    module, _, function = where.partition(":")
    tree = ast.parse((ROOM / f"{module}.py").read_text())
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return [argument.arg for argument in found.args.args]


def by_name(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@pytest.mark.parametrize(("name", "where"), ARMED, ids=[f"{name}-{where}" for name, where in ARMED])
def test_the_catalogue_gives_each_fault_its_arguments(name: str, where: str) -> None:
    assert sorted(by_name(name).arguments or {}) == sorted(parameters(where))


def test_every_fault_is_in_the_catalogue_once() -> None:
    assert sorted(fault.name for fault in FAULTS) == sorted({"none", *faults.INSIDE, *faults.OUTSIDE})


def test_every_fault_is_done_by_someone() -> None:
    for fault in FAULTS:
        assert fault.name == "none" or fault.name in faults.INSIDE or fault.outside or fault.change


def test_arming_an_unknown_fault_names_it_and_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(faults.FAULT, faults.encode({"name": "sun spots"}))
    with pytest.raises(ValueError, match=r"'sun spots'; known: .*late rank"):
        faults.arm("trainer", "rank")


def test_nothing_is_armed_without_a_fault_or_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    monkeypatch.delenv(faults.FAULT, raising=False)
    faults.arm("trainer", "rank")
    monkeypatch.setenv(faults.FAULT, faults.encode({"name": "late rank", "rank": 0}))
    faults.arm("trainer", "rank")
    monkeypatch.setenv(faults.FAULT, faults.encode({"name": "worker stopped"}))
    faults.arm("rollout", "worker")


def test_a_fault_is_armed_with_its_arguments_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    class Module:
        @staticmethod
        def arm(**arguments: Any) -> None:
            got.append(arguments)

    monkeypatch.setattr(faults, "import_module", lambda name: Module if name.endswith(".late_rank") else None)
    monkeypatch.setenv(faults.FAULT, faults.encode({"name": "late rank", "rank": 1, "seconds": 2.0}))
    faults.arm("rollout", "worker")
    assert got == [{"rank": 1, "seconds": 2.0}]


def test_every_second_row_loses_its_image_and_stays_usable(tmp_path: Path) -> None:
    write_shapes(tmp_path / "whole")
    mixed = without_images(tmp_path / "whole" / "train.jsonl", tmp_path / "mixed" / "train.jsonl")
    rows = [json.loads(line) for line in mixed.read_text().splitlines()]
    assert check_dataset(mixed) == len(rows)
    assert [len(row["images"]) for row in rows[:4]] == [1, 0, 1, 0]


# -- a row of the matrix

RIGHT = Verdict(
    Kind.DIVERGED,
    "",
    group=GroupView("trainer.world", (0, 1), "", "gloo"),
    ranks=(
        RankView(0, "trainer rank 0", "differs", operation="all_gather #8 of float32"),
        RankView(1, "trainer rank 1", "differs", operation="all_reduce #8 of 1 float32"),
    ),
    agreed=BoundaryView("step", 1, 1),
    cause="rank-dependent-control-flow",
)
WANTED = replace(by_name("extra collective").expected, kind=Kind.DIVERGED)


def test_the_right_verdict_has_nothing_wrong() -> None:
    assert wrong(WANTED, RIGHT) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda v: replace(v, kind=Kind.INCOMPLETE), "verdict: expected diverged, got incomplete"),
        (lambda v: replace(v, group=None), "group: expected trainer.world, got none"),
        (lambda v: replace(v, agreed=BoundaryView("step", 2, 2)), "agreed last: expected step 1, got step 2"),
        (
            lambda v: replace(v, cause="mixed-batch"),
            "cause: expected rank-dependent-control-flow, got mixed-batch",
        ),
        (lambda v: replace(v, odd=(0,)), "rank: expected 1 with all_reduce, got rank 0 differs"),
        (
            lambda v: replace(v, kind=Kind.STUCK, absent=(1,), ranks=()),
            "rank: expected 1 with all_reduce, got rank 1 absent",
        ),
        (lambda v: replace(v, ranks=v.ranks[:1]), "rank: expected 1 with all_reduce"),
        (lambda v: replace(v, lost="trainer rank 0"), "process gone: expected none, got trainer rank 0"),
    ],
)
def test_a_wrong_verdict_is_told(change: Callable[[Verdict], Verdict], what: str) -> None:
    assert any(text.startswith(what) for text in wrong(WANTED, change(RIGHT)))


def test_where_the_backend_decides_either_kind_is_right_but_no_third() -> None:
    either = by_name("other size").expected
    assert either.kinds == "diverged or stuck"
    for kind in (Kind.DIVERGED, Kind.STUCK):
        assert wrong(either, replace(RIGHT, kind=kind)) == []
        assert any(text.startswith("rank: ") for text in wrong(either, replace(RIGHT, kind=kind, ranks=())))
    told = wrong(either, replace(RIGHT, kind=Kind.STALLED))
    assert told == ["verdict: expected diverged or stuck, got stalled"]


def test_a_clean_run_must_not_have_a_cause() -> None:
    assert wrong(Expected(Kind.IN_STEP), Verdict(Kind.IN_STEP, "")) == []
    assert wrong(Expected(Kind.IN_STEP), Verdict(Kind.IN_STEP, "", cause="rank-died"))


def test_an_absent_rank_is_the_one_of_a_hang() -> None:
    hang = replace(RIGHT, kind=Kind.STUCK, absent=(1,), cause="rank-died")
    want = Expected(Kind.STUCK, "trainer.world", 1, cause="rank-died")
    assert wrong(want, hang) == []
    assert wrong(want, replace(hang, absent=(0,)))


def test_the_page_says_what_is_wrong_and_what_was_not_run(tmp_path: Path) -> None:
    row = {
        "fault": "late rank", "verdict": "in step", "group": "", "named": "", "agreed": "", "cause": "",
        "evidence": [], "wrong": "verdict: expected stuck, got in step", "seconds_to_verdict": 2.5,
        "sentence": "all well", "done_from_outside": [],
    }  # fmt: skip
    write_page(FAULTS, [row], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert (
        "| late rank | rollout | in step | stuck, offline-wave-race | **no**: verdict: expected stuck" in text
    )
    assert text.count("| not run |") == len(FAULTS) - 1


def test_ledgers_outlive_the_run_and_give_the_same_verdict_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_job(spec: JobSpec, home: Path, *_: Any) -> Outcome:
        shutil.copytree(Job(whole_job()).write(tmp_path / "made"), home)
        return Outcome(judge(read_directory(home)), "", 9.0, 2.5, 1.0, 1)

    monkeypatch.setattr(matrix, "run_job", run_job)
    job = cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))
    none = by_name("none")
    (row,) = matrix.run_matrix(job, tmp_path, [none], lambda _: lambda *_: None, lambda *_: None)
    assert (row["verdict"], row["wrong"]) == ("in step", "")
    for folder in tmp_path.iterdir():
        if folder.name.startswith("2"):
            shutil.rmtree(folder)
    assert matrix.judge_again(tmp_path, [none], lambda *_: None) == [row]

    away = tmp_path / "ledgers" / "elsewhere"
    kept = (tmp_path / "ledgers" / "none").rename(away)
    assert matrix.judge_again(tmp_path, [none], lambda *_: pytest.fail("judged by nothing")) == [row]
    kept.rename(tmp_path / "ledgers" / "none")

    lone = next((tmp_path / "ledgers").rglob("trainer-rank-1-*"))
    lone.unlink()
    (again,) = matrix.judge_again(tmp_path, [none], lambda *_: None)
    assert again["wrong"].startswith("verdict: expected in step, got incomplete")


@pytest.mark.parametrize("made", [True, False])
def test_where_nothing_ran_there_is_nothing_to_judge_again(tmp_path: Path, made: bool) -> None:
    out = tmp_path / "faults"
    if made:
        out.mkdir()
    done = CliRunner().invoke(cli.app, ["faults", "--again", "--out", str(out)])
    assert done.exit_code == 2
    assert done.output == f"lockstep: {out}: no earlier runs to judge again, expected their summary.json\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["faults"] * made


def test_a_verdict_that_the_ledgers_do_not_give_again_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_job(spec: JobSpec, home: Path, *_: Any) -> Outcome:
        Job(incident()).write(home)
        return Outcome(Verdict(Kind.IN_STEP, ""), "", 9.0, 2.5, 1.0, 1)

    monkeypatch.setattr(matrix, "run_job", run_job)
    job = cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))
    (row,) = matrix.run_matrix(job, tmp_path, [by_name("none")], lambda _: lambda *_: None, lambda *_: None)
    assert row["wrong"].startswith("its ledgers alone give another verdict, 'stuck': group rollout.dp")


def test_kept_ledgers_take_the_place_of_an_earlier_runs_and_of_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_job(spec: JobSpec, home: Path, *_: Any) -> Outcome:
        Job(whole_job()).write(home)
        return Outcome(judge(read_directory(home)), "", 9.0, 2.5, 1.0, 1)

    monkeypatch.setattr(matrix, "run_job", run_job)
    job = cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))
    (tmp_path / "ledgers" / "none").mkdir(parents=True)
    (tmp_path / "ledgers" / "none" / "book.ods").write_text("mine")
    for _ in range(2):
        (row,) = matrix.run_matrix(
            job, tmp_path, [by_name("none")], lambda _: lambda *_: None, lambda *_: None
        )
        assert Path(row["ledgers"]) == tmp_path / "ledgers" / "none-2"
    assert [path.name for path in (tmp_path / "ledgers" / "none").iterdir()] == ["book.ods"]
    assert {path.name for path in (tmp_path / "ledgers").iterdir()} == {"none", "none-2"}
