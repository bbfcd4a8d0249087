"""The line of a failed job's logs that explains it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.run.evidence import error_in, last_error, own_log


def write(logs: Path, name: str, text: str, *, mtime: float = 0.0) -> Path:
    path = logs / name
    path.write_text(text)
    os.utime(path, (mtime, mtime))
    return path


def test_the_process_that_fell_silent_first_explains_the_side(tmp_path: Path) -> None:
    write(tmp_path, "trainer-rank-0.log", "RuntimeError: Connection closed by peer\n", mtime=20)
    first = write(tmp_path, "trainer-rank-1.log", "step 1\nValueError: no such shape\n", mtime=10)
    echo = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    write(tmp_path, "trainer.log", f"$ swift rlhf\n{echo}", mtime=30)
    write(tmp_path, "rollout-server-0.log", "KeyError: 'other side'\n", mtime=1)
    assert last_error(tmp_path, "trainer") == f"ValueError: no such shape ({first}:2)"


@pytest.mark.parametrize(
    ("text", "told"), [("ValueError: x\n", "ValueError: x ({log}:1)"), ("step 1\n", "its log is {log}")]
)
def test_torchrun_knows_which_rank_failed_first(tmp_path: Path, text: str, told: str) -> None:
    write(tmp_path, "trainer-rank-0.log", "RuntimeError: Connection closed by peer\n", mtime=1)
    log = write(tmp_path, "trainer-rank-1.log", text, mtime=9)
    line = "E1130 02:02:16.5 17 x/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 25) of binary: /bin/p"
    write(tmp_path, "trainer.log", f"$ swift rlhf\n{line}\n")
    assert last_error(tmp_path, "trainer") == f"rank 1 (pid 25) ended with status -9: {told.format(log=log)}"


def test_a_rank_that_failed_before_it_had_a_log_told_the_common_one(tmp_path: Path) -> None:
    line = "E1130 02:02:16.5 17 x/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 24) of binary: /bin/p"
    log = write(tmp_path, "trainer.log", f"$ swift rlhf\nAttributeError: no such name\n{line}\n")
    told = "rank 0 (pid 24) ended with status 1:"
    assert last_error(tmp_path, "trainer") == f"{told} AttributeError: no such name ({log}:2)"
    log.write_text(f"{line}\n")
    assert last_error(tmp_path, "trainer") == f"{told} its log is {log}"


def test_without_an_exception_the_last_line_must_do(tmp_path: Path) -> None:
    log = write(tmp_path, "rollout.log", "$ swift rollout\nthe machine is on fire\n")
    write(tmp_path, "rollout-server-0.log", "all is well\n")
    assert last_error(tmp_path, "rollout") == f"the machine is on fire ({log}:2)"


def test_without_a_log_nothing_was_written(tmp_path: Path) -> None:
    assert last_error(tmp_path, "rollout") == f"it wrote nothing ({tmp_path / 'rollout.log'}:0)"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ValueError: x", "ValueError: x"),
        ("torch.OutOfMemoryError: no memory", "torch.OutOfMemoryError: no memory"),
        ("[rank1]: RuntimeError: x", "RuntimeError: x"),
        ("(EngineCore_DP1 pid=17) ERROR 11-30 02:26:32 [core.py:708] ValueError: x", "ValueError: x"),
        ("(EngineCore_DP1 pid=17) ValueError: x", "ValueError: x"),
        (
            "\x1b[1;36m(EngineCore_DP1 pid=17)\x1b[0;0m ERROR 11-30 02:26:32 [core.py:708] ValueError: x",
            "ValueError: x",
        ),
        ("my.package.BadInputException: x", "my.package.BadInputException: x"),
        ("KeyboardInterrupt", ""),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", ""),
        ("    raise ValueError('x')", ""),
        ("ValueErrors are fine", ""),
        ("I saw ValueError: x", ""),
        ("", ""),
    ],
)
def test_what_counts_as_an_exception(tmp_path: Path, line: str, told: str) -> None:
    log = write(tmp_path, "x.log", f"begin\n{line}\nend\n")
    assert error_in(log) == (f"{told} ({log}:2)" if told else "")


def test_of_a_chain_of_exceptions_the_last_one_counts_and_long_ones_are_cut(tmp_path: Path) -> None:
    log = write(tmp_path, "x.log", f"KeyError: 1\nValueError: {'x' * 1000}\nKeyboardInterrupt\n")
    assert error_in(log).startswith("ValueError: xxx")
    assert len(error_in(log)) < 320 + len(str(log))


def test_bytes_that_are_no_text_are_no_obstacle(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"\xff\xfe\nValueError: \xff\n")
    assert error_in(log).startswith("ValueError: ")


@pytest.mark.parametrize(
    ("label", "name"),
    [("rollout engine core 1", "rollout-engine_core-1.log"), ("trainer rank 0", "trainer-rank-0.log")],
)
def test_the_log_of_a_process(tmp_path: Path, label: str, name: str) -> None:
    assert own_log(tmp_path, label) == tmp_path / name
