"""What must not happen: a probe that disturbs the job, or a failed one whose ledger looks whole."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402

from lockstep.inside.recorder import Probe  # noqa: E402
from lockstep.verdict import Kind  # noqa: E402


def _finish(probe: Probe) -> None:
    probe.boundary("step")
    dist.all_reduce(torch.ones(1))
    probe.boundary("train end")


def _flood(probe: Probe, rank: int) -> None:
    """More collectives at once than the ring holds."""
    dist.all_reduce(torch.ones(1))
    probe.boundary("train begin")
    probe._turn = lambda last=False: Probe._turn(probe, True) if last else None  # type: ignore[method-assign]
    for _ in range(300):
        dist.all_reduce(torch.ones(1))
    del probe._turn
    _finish(probe)


def test_an_overflow_of_the_ring_is_told_and_never_in_step(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _flood, ring=50) == [0, 0]
    for rank in (0, 1):
        (lost,) = ranks.lines(tmp_path, rank, "lost")
        assert lost["g"] is None
        assert lost["records"] >= 200
        counts = [b["c"]["0"][0] for b in ranks.lines(tmp_path, rank, "boundary") if b["c"]]
        assert counts[-2:] == [301, 302]
        assert sum(map(len, ranks.streams(tmp_path, rank))) == 302
        kinds = [line["k"] for line in ranks.lines(tmp_path, rank)]
        assert kinds.index("lost") < len(kinds) - kinds[::-1].index("boundary") - 1
    verdict = ranks.verdict(tmp_path)
    assert verdict.kind is Kind.INCOMPLETE
    assert "overwritten" in verdict.sentence


def _steady(probe: Probe, rank: int) -> None:
    for _ in range(600):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.001)
    _finish(probe)


def test_a_small_ring_that_is_read_in_time_loses_nothing(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _steady, ring=400) == [0, 0]
    assert not ranks.lines(tmp_path, 0, "lost")
    assert ranks.verdict(tmp_path).kind is Kind.IN_STEP


def _forks(probe: Probe, rank: int) -> None:
    def child() -> None:
        probe.boundary("step")
        probe.close()
        time.sleep(1.5)

    probe.boundary("train begin")
    worker = multiprocessing.get_context("fork").Process(target=child)
    worker.start()
    loader = torch.utils.data.DataLoader(
        list(range(8)), batch_size=2, num_workers=1, multiprocessing_context="fork"
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    worker.join()
    assert worker.exitcode == 0
    _finish(probe)


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _forks) == [0, 0]
    assert [b["b"] for b in ranks.lines(tmp_path, 0, "boundary")] == ["train begin", "step", "train end"]
    assert len(ranks.lines(tmp_path, 0, "end")) == 1
    times = [p["t"] for p in ranks.lines(tmp_path, 0, "pulse")]
    assert times == sorted(times)
    assert ranks.verdict(tmp_path).kind is Kind.IN_STEP


def _in_a_full_file(probe: Probe, rank: int) -> None:
    probe.boundary("train begin")
    time.sleep(1.2)
    if rank == 1:
        size = probe._writer.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, resource.RLIM_INFINITY))
    for i in range(40):
        dist.all_reduce(torch.ones(1))
        probe.boundary("step", i)
        time.sleep(0.05)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    _finish(probe)


def test_a_full_disk_stops_the_probe_and_not_the_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ranks.run(tmp_path, _in_a_full_file) == [0, 0]
    assert "lockstep: the probe failed" in capfd.readouterr().err
    (path,) = (tmp_path / "ledgers").glob("trainer-rank-1-*.jsonl")
    assert not path.read_bytes().endswith(b"\n")
    assert ranks.lines(tmp_path, 0)[-1]["k"] == "end"
    assert ranks.verdict(tmp_path).kind is Kind.INCOMPLETE


def _broken(probe: Probe, rank: int) -> None:
    probe.boundary("train begin")
    if rank == 0:
        probe._recorder.status = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    _finish(probe)
    probe.boundary("step")


def test_a_probe_that_fails_says_so_and_the_job_goes_on(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _broken) == [0, 0]
    (error,) = ranks.lines(tmp_path, 0, "error")
    assert error["what"] == "ZeroDivisionError: division by zero"
    verdict = ranks.verdict(tmp_path)
    assert verdict.kind is Kind.INCOMPLETE
    assert any("the probe failed" in str(problem) for problem in verdict.problems)


def _without_a_directory(probe: Probe, rank: int) -> None:
    if rank == 1:
        shutil.rmtree(probe._directory / "ledgers")
    dist.barrier()
    time.sleep(1.2)
    _finish(probe)


def test_a_ledger_that_was_deleted_is_missed(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _without_a_directory) == [0, 0]
    assert not (tmp_path / "ledgers").exists()


SCRIPT = """
    import os, sys, time
    import torch
    from lockstep.probe import attach
    probe = attach.attach("trainer", "rank", 0)
    assert attach.attach("trainer", "rank", 0) is probe
    print("recorded" if probe else "not recorded", flush=True)
    if probe:
        probe.boundary("train begin")
    {}
"""


def _script(body: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = textwrap.dedent(SCRIPT).format(textwrap.dedent(body))
    base = {k: v for k, v in os.environ.items() if k not in ("LOCKSTEP_RUN_DIR", "PYTHONDONTWRITEBYTECODE")}
    base["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", code], env=base | env, capture_output=True, text=True, timeout=120
    )


def _kinds(directory: Path) -> list[str]:
    return [line["k"] for line in ranks.lines(directory, 0)]


@pytest.mark.parametrize(
    ("body", "status", "last"),
    [("", 0, "end"), ("raise ValueError('the job')", 1, "end"), ("os.kill(os.getpid(), 9)", -9, None)],
    ids=["returns", "raises", "killed"],
)
def test_a_process_that_ends_by_itself_closes_its_ledger(
    tmp_path: Path, body: str, status: int, last: str | None
) -> None:
    done = _script(f"time.sleep(0.3); {body}", {"LOCKSTEP_RUN_DIR": str(tmp_path)})
    assert done.returncode == status, done.stderr
    kinds = _kinds(tmp_path)
    assert kinds[0] == "process"
    if last:
        assert kinds[-2:] == ["pulse", last]
    else:
        assert "end" not in kinds
    assert "goes on in" in done.stdout
    log = (tmp_path / "logs" / "trainer-rank-0.log").read_text()
    assert "recorded" in log
    assert ("ValueError: the job" in log) == (status == 1)


def test_without_a_run_directory_nothing_is_recorded() -> None:
    done = _script("", {})
    assert (done.returncode, done.stdout) == (0, "not recorded\n")


def test_a_run_directory_that_cannot_be_written_does_not_stop_the_job(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _script("print('the job goes on')", {"LOCKSTEP_RUN_DIR": str(tmp_path / "file" / "run")})
    assert done.returncode == 0
    assert done.stdout == "not recorded\nthe job goes on\n"
    assert "lockstep: cannot record this process" in done.stderr


FORKED = """
    pid = os.fork()
    if pid == 0:
        own = attach.attach("rollout", "engine core", 1)
        assert own is not probe
        own.boundary("wave end")
        own.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_engine_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    done = _script(FORKED, {"LOCKSTEP_RUN_DIR": str(tmp_path)})
    assert done.returncode == 0, (tmp_path / "logs" / "trainer-rank-0.log").read_text()
    assert [line["b"] for line in ranks.lines(tmp_path, 0, "boundary")] == ["train begin"]
    (child,) = (tmp_path / "ledgers").glob("rollout-engine_core-1-*.jsonl")
    assert '"wave end"' in child.read_text()


def _kept(probe: Probe, rank: int) -> None:
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        (probe._directory / "evidence").mkdir()
        (probe._directory / "evidence" / "wanted").touch()
    time.sleep(3)


def test_the_recorders_entries_are_saved_with_their_stacks_when_wanted(tmp_path: Path) -> None:
    assert ranks.run(tmp_path, _kept) == [0, 0]
    texts = [path.read_text() for path in (tmp_path / "evidence").glob("trainer-rank-*.flight.json")]
    assert len(texts) == 2
    assert all("_kept" in text and "gloo:all_reduce" in text for text in texts)
