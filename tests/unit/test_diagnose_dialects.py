"""The same facts through every wrapping that a log comes in, and through every release's wording."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.diagnose import Diagnosis, conclude, diagnose
from lockstep.diagnose.events import Mark, Status, Timeout
from lockstep.diagnose.scan import scan

LOGS = Path(__file__).parent.parent / "data" / "logs"
INCIDENT = (LOGS / "incident.log").read_text()


def through(text: str | bytes) -> Diagnosis:
    raw = text.encode() if isinstance(text, str) else text
    return conclude(scan(io.BytesIO(raw), "x").events, [])


def per_line(prefix: str) -> Callable[[str], str]:
    return lambda text: "".join(f"{prefix}{line}\n" for line in text.splitlines())


def hard_wrapped(width: int) -> Callable[[str], str]:
    """As a terminal wraps: in the middle of words."""
    return lambda text: "\n".join(
        line[at : at + width] for line in text.splitlines() for at in range(0, max(len(line), 1), width)
    )


def soft_wrapped(text: str) -> str:
    return "\n".join(
        "\n".join(textwrap.wrap(line, 100, break_long_words=False)) or "" for line in text.splitlines()
    )


def interleaved(text: str) -> str:
    """Two ranks write at once: the end of a line is missing where the other's begins."""
    return re.sub(r"(before timing out\.)\n(\[rank0\])", r"\1\2", text)


WRAPPINGS: dict[str, Callable[[str], str | bytes]] = {
    "plain": lambda text: text,
    "torchrun": per_line("[default0]:"),
    "ray": per_line("(WorkerDict pid=1230) "),
    "ray in colour": per_line("\x1b[36m(WorkerDict pid=1230, ip=10.0.0.1)\x1b[0m "),
    "colour lost in a web page": per_line("[36m(WorkerDict pid=1230)[0m "),
    "slurm": per_line("0: "),
    "kubernetes": per_line("2025-12-06T21:14:09.118273645Z "),
    "kubernetes with pod": per_line("[pod/rollout-0/main] 2025-12-06T21:14:09.118273645Z "),
    "docker compose": per_line("rollout-1  | "),
    "markdown": per_line("> "),
    "markdown twice": per_line("> > "),
    "indented": per_line("    "),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "bars on one line": lambda text: re.sub(r"\]\n(?=\d|Train|\[rank0)", "]\r", text),
    "long bars before": lambda text: "\r".join(f"Train: {i}%|#| {i}/9 [" for i in range(4000)) + "\r" + text,
    "wrapped at 80": hard_wrapped(80),
    "wrapped at 132": hard_wrapped(132),
    "wrapped between words": soft_wrapped,
    "interleaved": interleaved,
    "no end of line": lambda text: text.rstrip("\n"),
    "bad utf-8": lambda text: b"\xff\xfe\xe2\x28\n" + text.encode() + b"\xff",
    "deep in a large log": lambda text: "all is well\n" * 400_000 + text + "all is well\n" * 200_000,
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_the_incident_in_every_wrapping(name: str) -> None:
    found = through(WRAPPINGS[name](INCIDENT))
    assert found.cause == "offline-wave-race"
    assert found.group is not None
    assert (found.group.seq, found.group.pg_guid, found.group.waiting, found.group.absent) == (
        434159,
        "15",
        (0,),
        (1,),
    )
    assert found.group.ranks[0].completed == 434158


def test_line_numbers_are_those_of_the_file() -> None:
    text = "all is well\n" * 300_000 + INCIDENT
    found = through(text)
    assert found.first is not None
    assert found.first.line == 300_007
    assert "Watchdog caught" in text.split("\n")[found.first.line - 1]


@pytest.mark.parametrize(
    ("log", "label", "seq", "op", "numel", "ranks", "completed"),
    [
        ("torch-2.0", None, 469508, "ALLREDUCE", None, (0, 1, 2, 3), None),
        ("torch-2.1", None, 211067, "_ALLGATHER_BASE", 2359296, (1, 7), None),
        ("torch-2.3", "PG 1", 158046, "GATHER", 2867200, (1,), 158045),
        ("control-flow", "PG 0 (default_pg)", 80078, "ALLREDUCE", 2106881, (0, 1, 2, 3), 80077),
        ("torch-2.5", "PG ID 0 PG GUID 0 (default_pg)", 808, "ALLREDUCE", 9801523, (0, 1, 2), 807),
        ("torch-2.6", "PG ID 4 PG GUID 20 (mesh_tp)", 3, "BROADCAST", 1, (1,), 2),
        ("incident", "PG ID 5 PG GUID 15", 434159, "ALLREDUCE", 2, (0,), 434158),
    ],
)
def test_every_release_says_the_same_facts(
    log: str,
    label: str | None,
    seq: int,
    op: str,
    numel: int | None,
    ranks: tuple[int, ...],
    completed: int | None,
) -> None:
    group = diagnose([str(LOGS / f"{log}.log")]).group
    assert group is not None
    assert (group.label, group.seq, group.operation, group.elements) == (label, seq, op, numel)
    assert group.waiting == ranks
    assert next(rank.completed for rank in group.ranks if rank.rank == ranks[0]) == completed


def test_a_process_is_known_by_its_prefix() -> None:
    events = scan((LOGS / "torch-2.6.log").open("rb"), "x").events
    timeout = next(event for event in events if isinstance(event, Timeout))
    who = timeout.origin
    assert (who.rank, timeout.rank, who.process, who.pid, who.host) == (
        15,
        1,
        "WorkerDict",
        1230,
        "train-worker-0",
    )
    assert who.when == pytest.approx((31 + 28 + 31 + 30 + 9) * 86400 + 18 * 60 + 19.328, abs=1e-2)


def test_ranks_that_ray_left_out_are_not_missed() -> None:
    line = (
        "(RefActor pid=5823) [rank{r}]:[E1225 12:58:32.712922209 ProcessGroupNCCL.cpp:616] [Rank {r}] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17284, OpType=_ALLGATHER_BASE, "
        "NumelIn=100, NumelOut=400, Timeout(ms)=7200000) ran for 7200031 milliseconds before timing out."
    )
    some = through(line.format(r=0)).group
    assert some is not None
    assert (some.absent, some.not_seen) == ((), (1, 2, 3))  # no line tells that they did not wait as well
    all_of_them = through(line.format(r=0) + " [repeated 3x across cluster]").group
    assert all_of_them is not None
    assert (all_of_them.absent, all_of_them.not_seen) == ((), ())


def test_lines_that_people_have_shortened() -> None:
    what = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=167, OpType=ALLREDUCE, NumelIn=1, "
    text = "\n".join(f"[rank{rank}]: {what}NumelOut=1, Timeout(ms)=600000)" for rank in (8, 9, 13))
    group = through(text).group
    assert group is not None
    assert group.waiting == (8, 9, 13)


def test_a_work_that_did_not_time_out_is_no_timeout() -> None:
    assert (
        through("[Rank 0] waits for WorkNCCL(SeqNum=3, OpType=BROADCAST, Timeout(ms)=600000)").cause is None
    )


def test_a_message_on_the_next_line_is_not_joined_to_the_one_before() -> None:
    events = scan((LOGS / "incident.log").open("rb"), "x").events
    assert sorted({event.line for event in events if isinstance(event, Timeout)}) == [7, 29]
    assert [event.line for event in events if isinstance(event, Status)] == [8, 11, 13]


def test_a_flood_of_warnings_is_bounded() -> None:
    line = b"(EngineCore pid=1) No available shared memory broadcast block found in 60 seconds.\n"
    result = scan(io.BytesIO(line * 50_000), "x")
    assert result.lines == 50_000
    assert len([e for e in result.events if isinstance(e, Mark) and e.failure]) <= 5_000
    assert any("the first 5000 were used" in problem for problem in result.problems)
