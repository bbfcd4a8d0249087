"""Which groups must have counted in which job, and what is said of one that has not."""

from __future__ import annotations

from pathlib import Path

import ledgers
import pytest

from lockstep.record import read_directory
from lockstep.remedies.tried import TRIED
from lockstep.run.counted import silent
from lockstep.stacks.swift.groups import expected_groups, rollout_groups
from lockstep.stacks.swift.remedied import cured
from lockstep.stacks.swift.spec import Layout, cpu_job

JOB = cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))
TRAINER = ("trainer.world", "trainer.zero")


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("as shipped", ("rollout.dp", *TRAINER, "weight-sync")),
        ("open wave", ("rollout.dp", *TRAINER, "weight-sync")),
        ("independent ranks", (*TRAINER, "weight-sync")),
        ("two servers", (*TRAINER, "weight-sync", "weight-sync#2")),
        ("tensor parallel", (*TRAINER, "weight-sync")),
        ("cpu dp sync", ("rollout.dp.cpu", *TRAINER, "weight-sync")),
    ],
)
def test_every_remedy_has_the_groups_that_its_job_must_use(remedy: str, expected: tuple[str, ...]) -> None:
    tried = next(tried for tried in TRIED if tried.name == remedy)
    assert expected_groups(cured(JOB, tried)) == expected


def test_one_trainer_rank_has_no_group_of_its_own() -> None:
    alone = JOB.with_(layout=Layout(trainer=(0,), rollout=(1, 2)))
    assert expected_groups(alone) == ("rollout.dp", "weight-sync")
    assert rollout_groups(alone) == ("rollout.dp",)


def test_a_group_must_have_counted_on_each_of_its_ranks(tmp_path: Path) -> None:
    procs = ledgers.whole_job()
    assert silent(expected_groups(JOB), read_directory(ledgers.Job(procs).write(tmp_path / "whole"))) == ""
    for proc in procs:
        proc.program[:] = [action for action in proc.program if getattr(action, "group", "") != "weight-sync"]
    told = silent(expected_groups(JOB), read_directory(ledgers.Job(procs).write(tmp_path / "quiet")))
    assert told.startswith("group weight-sync has counted nothing on rank 0, 1, 2: ")
    assert silent(expected_groups(JOB), []).count("there is no group") == 4
    assert silent((), []) == ""
