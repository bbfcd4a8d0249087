"""The check of a machine's GPUs: what it says, writes and ends with. The checks themselves need a GPU."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import fake_smi
import psutil
import pytest
from typer.testing import CliRunner

from lockstep import cli
from lockstep.gpu_check import command, inside
from lockstep.gpu_check.catalogue import CHECKS
from lockstep.gpu_check.expectation import expect


def asked(*fails: str) -> command.Ask:
    return lambda name, env: (name not in fails, f"saw {name}")


def test_each_check_is_a_line_and_a_failure_says_what_it_breaks_and_what_to_do() -> None:
    lines: list[str] = []
    found = command.check((0, 1), {}, asked("PyNccl"), lines.append)
    assert [each.name for each in found] == [check.name for check in CHECKS]
    assert [each.name for each in found if each.state == "failed"] == ["PyNccl"]
    (failed,) = [line for line in lines if "failed" in line]
    assert "\n  breaks: the weight sync" in failed
    assert "\n  do: NCCL_DEBUG=INFO" in failed
    assert all("\n" not in line for line in lines if line is not failed)


def test_one_gpu_skips_what_needs_two_and_says_so() -> None:
    found = command.check((3,), {}, asked(), lambda line: None)
    skipped = [each.name for each in found if each.state == "skipped"]
    assert skipped == ["hang of two", "PyNccl", "RAS"]
    assert "needs 2 GPUs, found 1" in found[-1].seen


def test_every_check_has_a_body_and_every_body_is_a_check() -> None:
    assert set(inside.BODIES) == {check.name for check in CHECKS}
    assert all(check.breaks and check.do for check in CHECKS)


@pytest.mark.parametrize(("fails", "code"), [((), 0), (("recorder",), 1)])
def test_the_json_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: tuple[str, ...], code: int
) -> None:
    for name, value in fake_smi.install(tmp_path / "bin", 2).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(command, "ask", asked(*fails))
    path = tmp_path / "found" / "check.json"
    done = CliRunner().invoke(cli.app, ["gpu-check", "--json", str(path)])
    assert done.exit_code == code, done.output
    told = json.loads(path.read_text())
    assert (told["v"], told["gpus"], told["ok"]) == (1, [0, 1], not fails)
    assert [check["name"] for check in told["checks"] if check["state"] == "failed"] == list(fails)
    assert f"{len(CHECKS) - len(fails)} ok, {len(fails)} failed, 0 skipped" in done.output


def test_without_a_gpu_it_ends_at_once_with_1_and_a_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_smi.install(tmp_path / "bin", 0).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(command, "ask", lambda *_: pytest.fail("a check was begun"))
    done = CliRunner().invoke(cli.app, ["gpu-check", "--json", str(tmp_path / "check.json")])
    assert done.exit_code == 1
    assert "GPUs found: none; needed: 1 for gpu_check, 2 for all of it" in done.output
    assert not (tmp_path / "check.json").exists()


def _python(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> Mapping[str, str]:
    """An environment in which the checks' module is `body`."""
    place = folder / "lockstep" / "gpu_check"
    place.mkdir(parents=True)
    for package in (place.parent, place):
        (package / "__init__.py").touch()
    (place / "inside.py").write_text(body)
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("print('noise'); print('seen')", (True, "seen")),
        ("print('expected 3, got 2'); raise SystemExit(1)", (False, "expected 3, got 2")),
        (
            "import os; print('before', flush=True); os.kill(os.getpid(), 11)",
            (False, "ended with status -11: before"),
        ),
        ("", (True, "it said nothing")),
    ],
)
def test_a_check_is_a_process_of_its_own_and_may_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: tuple[bool, str]
) -> None:
    assert command.ask("recorder", _python(monkeypatch, tmp_path, body)) == told


def test_a_check_that_hangs_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    env = _python(monkeypatch, tmp_path / "fake", body)
    assert command.ask("PyNccl", env, limit_s=3.0) == (False, "no answer after 3 s")
    until = time.monotonic() + 20  # a killed process takes its time to go
    while psutil.pid_exists(pid := int((tmp_path / "pid").read_text())) and time.monotonic() < until:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.05)
    else:
        assert not psutil.pid_exists(pid)


def test_the_checks_have_the_jobs_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    monkeypatch.setenv("VLLM_PORT", "7")
    monkeypatch.setattr(command.toolkit, "has_nvcc", lambda env: False)
    env = command.environment((4, 5), tmp_path)
    assert "TORCH_NCCL_BLOCKING_WAIT" not in env
    assert "VLLM_PORT" not in env
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert os.access(Path(env["CUDA_HOME"], "bin", "nvcc"), os.X_OK)


def test_a_check_that_fails_ends_with_1_and_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = "torch" in sys.modules  # by another test, where the stack is installed
    monkeypatch.setitem(inside.BODIES, "recorder", lambda: expect(False, "3, got 2") or "")
    monkeypatch.setitem(inside.BODIES, "RAS", lambda: "seen")
    assert (inside.main("recorder"), inside.main("RAS")) == (1, 0)
    assert capsys.readouterr().out == "AssertionError: expected 3, got 2\nseen\n"
    assert ("torch" in sys.modules) == loaded, "the checks load nothing until they are asked"
