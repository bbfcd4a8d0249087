"""A stack of torchrun and gloo goes through the same run, faults and verdict as the one of the incident."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))

from toy.stack import TOY, ToyJob

from lockstep import stacks
from lockstep.experiments.faults.matrix import run_matrix
from lockstep.experiments.stress import session
from lockstep.run.supervise import Limits


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "get", lambda name=stacks.DEFAULT: TOY)
    monkeypatch.setattr(session, "LEAST_FREE_GIB", 0.0)


def test_the_arms_of_a_second_stack_end_as_expected(tmp_path: Path) -> None:
    results = session.run("cpu", steps=8, out=tmp_path / "out", only=[], stack="toy")
    assert [result.wrong for result in results] == ["", ""]
    control, hung = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (control["verdict"], control["boundaries"]["trainer rank"]["step"]) == ("in step", 8)
    assert (hung["verdict"], hung["group"], hung["waiting"], hung["absent"]) == (
        "stuck",
        "trainer.world",
        [0],
        [1],
    )


def test_an_arm_that_ends_otherwise_is_told(tmp_path: Path) -> None:
    from lockstep.experiments.stress.scenarios import run_arms

    control = TOY.arms(ToyJob())[0]
    (result,) = run_arms(
        [type(control)(control.spec, control.expected, boundaries=(("step", 9),))],
        tmp_path,
        Limits(),
        lambda arm: lambda *_: None,
        lambda result: None,
    )
    assert result.wrong == "expected 9 x 'step', passed 8"


def test_the_faults_of_a_second_stack_get_their_verdicts(tmp_path: Path) -> None:
    rows = run_matrix(ToyJob(), tmp_path, TOY.faults, lambda fault: lambda *_: None, lambda *_: None)
    assert [(row["fault"], row["verdict"], row["wrong"]) for row in rows] == [
        ("none", "in step", ""),
        ("left alone", "stuck", ""),
    ]
