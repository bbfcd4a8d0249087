"""Every cause of the catalogue: a log in which it must be found, and one in which it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.causes import CAUSES
from lockstep.diagnose import Diagnosis, diagnose
from lockstep.diagnose.render import render

LOGS = Path(__file__).parent.parent / "data" / "logs"


def of(*names: str) -> Diagnosis:
    return diagnose([str(LOGS / f"{name}.log") for name in names])


FOUND = [
    ("incident", "offline-wave-race"),
    ("online-dp", "online-dense-dp-out-of-step"),
    ("mixed-batch", "mixed-batch"),
    ("control-flow", "rank-dependent-control-flow"),
    ("mismatch", "rank-dependent-control-flow"),
    ("rank-died", "rank-died"),
    ("gloo-closed", "rank-died"),
    ("engine-died", "rank-died"),
    ("never-connected", "never-connected"),
    ("store-timeout", "never-connected"),
    ("connect-timeout", "never-connected"),
    ("gloo-connect", "never-connected"),
    ("slow-storage", "slow-storage-or-rank"),
    ("weight-sync", "weight-sync-interrupted"),
    ("oom", "out-of-memory-first"),
    ("oom-slurm", "out-of-memory-first"),
    ("shm-wait", "unknown"),
    ("torch-2.0", "unknown"),
]
# The twin of a cause: nearly the same log, without what makes it that cause.
NOT_FOUND = [
    ("wave-middle", "offline-wave-race"),
    ("online-dp", "offline-wave-race"),
    ("incident", "online-dense-dp-out-of-step"),
    ("same-size", "mixed-batch"),
    ("control-flow", "mixed-batch"),
    ("mixed-batch", "rank-dependent-control-flow"),
    ("abort-after", "rank-died"),
    ("online-dp", "rank-died"),
    ("late-first", "never-connected"),
    ("saved-before", "slow-storage-or-rank"),
    ("sync-after", "weight-sync-interrupted"),
    ("oom-after", "out-of-memory-first"),
    ("incident", "unknown"),
]


@pytest.mark.parametrize(("log", "cause"), FOUND, ids=[log for log, _ in FOUND])
def test_cause_is_found(log: str, cause: str) -> None:
    found = of(log)
    assert found.cause == cause, render(found)
    names = {remedy.name for remedy in found.remedies}
    assert names & {remedy.name for remedy in CAUSES[cause].remedies}


@pytest.mark.parametrize(("log", "cause"), NOT_FOUND, ids=[f"{log}-not-{cause}" for log, cause in NOT_FOUND])
def test_cause_is_not_found(log: str, cause: str) -> None:
    found = of(log)
    assert found.cause is not None
    assert found.cause != cause, render(found)
    assert all(candidate.standing != "found" for candidate in found.causes if candidate.id == cause)


FROM_LEDGERS = {"request-failed", "blocked-elsewhere"}
"""Causes that no log of a watchdog can show."""


def test_every_cause_has_both_logs_and_remedies() -> None:
    assert {cause for _, cause in FOUND} == {cause for _, cause in NOT_FOUND} == set(CAUSES) - FROM_LEDGERS


def test_evidence_is_quoted_with_file_and_line() -> None:
    for log, _ in FOUND:
        for cause in of(log).causes:
            for piece in cause.evidence_for:
                assert piece.file is not None
                assert piece.line is not None
                text = Path(piece.file).read_text().splitlines()[piece.line - 1]
                assert piece.quote[:20].split()[-1] in text


def test_the_incident() -> None:
    found = of("incident")
    assert found.side == "rollout"
    group = found.group
    assert group is not None
    assert (group.name, group.pg_id, group.pg_guid) == ("rollout.dp", 5, "15")
    assert (group.waiting, group.absent) == ((0,), (1,))
    best = group.readings[0]
    assert (best.component, best.releases, best.ranks) == ("vLLM", ("0.11.0",), (0, 1))
    assert best.layout is not None
    assert (best.layout["dp"], best.layout["tp"], best.layout["pp"]) == (2, 1, 1)
    assert group.ranks[0].enqueued == 434159
    assert group.ranks[0].completed == 434158
    assert any(
        "first step of a new wave" in piece.text and "% 32 = 1" in piece.text for piece in found.arithmetic
    )
    assert any("2 elements for 2 ranks" in piece.text for piece in found.arithmetic)
    assert any("the trainer only waited, at step 5559 of 9008" in piece.text for piece in found.follows)
    assert found.first is not None
    assert found.first.line == 7
    assert "rank 0" in found.conclusion
    assert found.conclusion.startswith("the rollout hung, the trainer only waited")


def test_one_sign_alone_is_no_cause() -> None:
    found = of("wave-middle")
    assert found.cause == "unknown"
    assert [(c.id, c.standing) for c in found.causes] == [("offline-wave-race", "possible")]
    assert found.causes[0].evidence_against


def test_the_rollout_comes_first_when_the_trainer_timed_out_too() -> None:
    found = of("same-size", "incident")
    assert found.cause == "offline-wave-race"
    assert [group.name for group in found.others] == ["trainer.zero"]
    assert any("trainer.zero" in piece.text for piece in found.follows)


def test_ranks_of_a_group_that_log_to_files_of_their_own(tmp_path: Path) -> None:
    lines = (LOGS / "mixed-batch.log").read_text().splitlines(keepends=True)
    for rank in range(4):
        mine = [line for line in lines if f"[rank{rank}]" in line or "[rank" not in line]
        (tmp_path / f"rank{rank}.log").write_text("".join(mine))
    found = diagnose([str(tmp_path)])
    assert found.cause == "mixed-batch"
    assert found.group is not None
    assert found.group.waiting == (0, 1, 2, 3)


def test_memory_in_another_log_counts_only_if_a_clock_says_that_it_came_first(tmp_path: Path) -> None:
    wait = (LOGS / "same-size.log").read_text()
    (tmp_path / "a.log").write_text(wait)
    other = tmp_path / "b.log"
    other.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert diagnose([str(tmp_path)]).cause == "unknown"
    other.write_text(
        "2025-12-06T20:59:00.1Z torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert diagnose([str(tmp_path)]).cause == "out-of-memory-first"
    other.write_text(
        "2025-12-06T22:59:00.1Z torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert diagnose([str(tmp_path)]).cause == "unknown"


def test_logs_whose_timeouts_are_days_apart_may_not_be_of_one_job() -> None:
    found = of("mixed-batch", "incident")
    (question,) = [text for text in found.open if "of one job" in text]
    assert f"{LOGS / 'incident.log'} (line 7) and {LOGS / 'mixed-batch.log'} (line 3) are 17 days" in question
    assert question in render(found)


@pytest.mark.parametrize(
    ("date", "told"),
    [("1206", False), ("1207", False), ("1205", False), ("1209", True), ("1203", True), ("0102", True)],
)
def test_time_zones_and_earlier_runs_do_not_part_a_job(tmp_path: Path, date: str, told: bool) -> None:
    """The incident is of 6 December, the trainer's log here of `date`; then the rollout has one of it."""
    trainer = (LOGS / "same-size.log").read_text()
    (tmp_path / "trainer.log").write_text(re.sub(r"\[E\d{4} ", f"[E{date} ", trainer))
    (tmp_path / "rollout.log").write_text((LOGS / "incident.log").read_text())
    assert any("of one job" in text for text in diagnose([str(tmp_path)]).open) == told
    another = (LOGS / "incident.log").read_text().replace("434159", "2001")
    with (tmp_path / "rollout.log").open("a") as log:
        log.write(re.sub(r"\[E\d{4} ", f"[E{date} ", another))
    assert not any("of one job" in text for text in diagnose([str(tmp_path)]).open)


def test_the_year_may_turn_in_a_hang(tmp_path: Path) -> None:
    for name, date in (("same-size", "0101"), ("incident", "1231")):
        text = re.sub(r"\[E\d{4} ", f"[E{date} ", (LOGS / f"{name}.log").read_text())
        (tmp_path / f"{name}.log").write_text(text)
    assert not any("of one job" in text for text in diagnose([str(tmp_path)]).open)


def test_text_for_people_has_the_conclusion_first() -> None:
    text = render(of("incident"))
    assert text.startswith("offline-wave-race  the rollout hung")
    order = ["the group", "offline-wave-race: found", "what to do", "what is open"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert "\x1b" not in text
    assert f"{LOGS / 'incident.log'}:7" in text
    assert "docs/remedies.md" in text
