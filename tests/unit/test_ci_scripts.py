"""The scripts of ci/ on hosts that are pretended: a fake nvidia-smi, folders in place of disks, processes of
our own."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import fake_smi
import pytest

from lockstep.ci import leftovers, preflight
from lockstep.ci.preflight import Host, Refused, check

ROOT = Path(__file__).parents[2]


def ci(name: str, *arguments: str, env: dict[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    script = ROOT / "ci" / name
    base = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHON": sys.executable}
    return subprocess.run(
        [str(script), *arguments],
        env=base | env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def host(folder: Path, gpus: int = 8, **more: object) -> Host:
    """A host on which all is well, but for what `more` gives to the fake nvidia-smi."""
    return Host(fake_smi.install(folder / "bin", gpus, **more), folder, folder)  # type: ignore[arg-type]


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(1 << 42, 0, 1 << 42)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(leftovers, "jobs", list)


@pytest.mark.usefixtures("roomy")
def test_a_good_host_passes(tmp_path: Path) -> None:
    found = check(host(tmp_path))
    assert [name for name, good, _ in found if not good] == []
    assert [name for name, _, _ in found] == list(preflight.CHECKS)


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    ("fake", "refused", "told"),
    [
        ({"gpus": 0}, {"GPUs", "free", "NVLink"}, "GPUs found: none; needed: 4 for the whole job, 1 for"),
        ({"used_mib": 70_000, "processes": {4711: "python3"}}, {"free"}, "GPU 0: 70000 MiB in use"),
        ({"used_mib": 70_000, "processes": {4711: "python3"}}, {"free"}, "4711, python3"),
        ({"nvlink": False}, {"NVLink"}, "GPU 0, 1, 2, 3, 4, 5, 6, 7 without an active NVLink"),
        ({"driver": "470.82.01"}, {"driver"}, "driver 470.82.01: torch 2.8.0 needs 525.60.13 or later"),
        ({"status": 9}, {"driver", "GPUs", "free", "NVLink"}, "ends with 9"),
    ],
)
def test_what_is_wrong_with_the_gpus_is_told(
    tmp_path: Path, fake: dict[str, object], refused: set[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.devices.PROC", tmp_path / "none")
    found = check(host(tmp_path, **{"gpus": 8, **fake}))
    assert {name for name, good, _ in found if not good} == refused
    assert told in " ".join(text for _, good, text in found if not good)


@pytest.mark.usefixtures("roomy")
def test_options_of_the_preflight(tmp_path: Path) -> None:
    env = fake_smi.install(tmp_path / "bin", 8, nvlink=False)
    bare = Host(env, tmp_path, tmp_path, without_nvlink=True)
    assert all(good for _, good, _ in check(bare))
    assert bare.used() == tuple(range(8))
    assert Host(env, tmp_path, gpus="4,5,6,7").used() == (4, 5, 6, 7)
    with pytest.raises(Refused, match="needed: 9, as --gpus says"):
        Host(env, tmp_path, gpus="9").used()


def test_disk_and_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 20
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, gib << 30))  # type: ignore[attr-defined]
    here = host(tmp_path)
    with pytest.raises(Refused, match="20 GiB free, 40 GiB needed"):
        preflight.disk(here)
    (tmp_path / ".nox" / "stack-gpu").mkdir(parents=True)
    (tmp_path / ".nox" / "stack-gpu" / "complete").touch()
    assert preflight.disk(here) == "20 GiB free"
    assert preflight.shared_memory(here) == "20 GiB free"
    gib = 0
    with pytest.raises(Refused, match=r"0.00 GiB free, 4 GiB needed \(docker run --shm-size"):
        preflight.shared_memory(here)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.resource, "getrlimit", lambda which: (1024, 1024))
    with pytest.raises(Refused, match=r"open files: at most 1024, 4096 needed \(ulimit -n 4096\)"):
        preflight.limits(host(tmp_path))
    infinite = preflight.resource.RLIM_INFINITY
    monkeypatch.setattr(preflight.resource, "getrlimit", lambda which: (infinite, infinite))
    assert preflight.limits(host(tmp_path)) == "open files: unlimited, processes: unlimited"


@pytest.mark.usefixtures("roomy")
def test_memory_that_nvidia_smi_does_not_give_is_refused(tmp_path: Path) -> None:
    class Sliced(Host):
        def smi(self, *arguments: str) -> str:
            return "0, [N/A]\n1, 0\n" if "memory.used" in arguments[0] else ""

    env = fake_smi.install(tmp_path / "bin", 8)
    with pytest.raises(Refused, match=r"GPU 0: nvidia-smi says '\[N/A\]' for the memory in use.*MIG"):
        preflight.free(Sliced(env, tmp_path, tmp_path))


def test_a_soft_limit_that_can_be_raised_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight.resource, "getrlimit", lambda which: (1024, 65536))
    told = preflight.limits(host(tmp_path))
    assert "open files: 65536" in told


def test_the_preflight_script_refuses_with_the_reason(tmp_path: Path) -> None:
    done = ci("preflight.sh", "--gpus", "4", env=fake_smi.install(tmp_path, 2), cwd=tmp_path)
    assert done.returncode == 1
    assert "GPUs:           REFUSED: GPUs found: 2 (0, 1); needed: 4, as --gpus says" in done.stdout
    assert "driver:         570.124.06" in done.stdout
    assert done.stderr == ""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process as a job leaves it, in a run of `tmp_path/runs`; deaf to SIGTERM."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    code = deaf + "print('up', flush=True); time.sleep(60)"
    (tmp_path / "runs").mkdir()
    env = os.environ | {"LOCKSTEP_RUN_DIR": str(tmp_path / "runs" / "20260101-000000" / "control")}
    started = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.readline() == b"up\n"
    yield started
    started.kill()
    started.communicate()


def test_what_is_left_over_is_ended(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    done = ci("end.sh", env={"LOCKSTEP_RUNS": str(tmp_path / "runs")})
    assert done.returncode == 0
    assert f"left over: process {process.pid}: " in done.stdout
    assert "all of them have been ended" in done.stdout
    assert process.wait(timeout=5) == -9
    assert ci("end.sh", env={"LOCKSTEP_RUNS": str(tmp_path / "runs")}).stdout == ""


def test_another_checkouts_run_and_one_that_goes_on_are_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    from lockstep.run.run_lock import home

    (tmp_path / "other").mkdir()
    assert ci("end.sh", env={"LOCKSTEP_RUNS": str(tmp_path / "other")}).returncode == 0
    with home(tmp_path / "runs"):
        done = ci("end.sh", env={"LOCKSTEP_RUNS": str(tmp_path / "runs")})
    assert done.returncode == 1
    assert "a run is going on; its processes are not touched" in done.stderr
    assert process.poll() is None
    assert process.pid in {found.pid for found in leftovers.jobs()}


def test_a_runs_folder_that_is_reached_by_a_link_is_the_same_folder(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """Also where the process was started by the path with the link."""
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    assert process.pid in {found.pid for found in leftovers.find(tmp_path / "link" / "runs")}
    env = os.environ | {"LOCKSTEP_RUN_DIR": str(tmp_path / "link" / "runs" / "20260101-000000" / "control")}
    with subprocess.Popen(
        [sys.executable, "-c", "print(1); input()"], env=env, stdin=subprocess.PIPE
    ) as linked:
        assert linked.pid in {found.pid for found in leftovers.find(tmp_path / "runs")}
        linked.kill()


def test_a_relative_runs_folder_is_taken_from_the_processs_own(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    env = os.environ | {"LOCKSTEP_RUN_DIR": "runs/20260101-000000/control"}
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdin=subprocess.PIPE) as started:
        assert started.pid in {found.pid for found in leftovers.find(tmp_path / "runs")}
        assert leftovers.find(ROOT / "runs") == []
        started.kill()


def test_another_users_process_is_no_leftover_whatever_its_environment_says(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [other for other in leftovers.jobs() if other.pid == process.pid]
    assert [other.owner for other in mine] == [os.getuid()]
    monkeypatch.setattr(leftovers, "jobs", lambda: [dataclasses.replace(mine[0], owner=os.getuid() + 1)])
    assert leftovers.find(tmp_path / "runs") == []
    monkeypatch.setattr(leftovers, "jobs", lambda: mine)
    assert leftovers.find(tmp_path / "runs") == mine


@pytest.mark.skipif(os.getuid() != 0, reason="only root can have a process of another user")
def test_root_ends_no_process_of_another_user(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    os.chown(tmp_path / "runs", 65534, 65534)
    done = ci("end.sh", env={"LOCKSTEP_RUNS": str(tmp_path / "runs")})
    assert (done.returncode, done.stdout) == (0, "")
    assert process.poll() is None
    assert (tmp_path / "runs" / leftovers.LOCK).stat().st_uid == 65534, "its owner can still lock it"


def test_the_preflight_names_processes_of_other_runs(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [other for other in leftovers.jobs() if other.pid == process.pid]
    monkeypatch.setattr(leftovers, "jobs", lambda: found)
    with pytest.raises(Refused, match=f"1 processes of another run: {process.pid} "):
        preflight.processes(host(tmp_path))
    monkeypatch.setattr(leftovers, "jobs", list)
    assert preflight.processes(host(tmp_path)) == "none of another run"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_lock_that_another_user_made_will_do(tmp_path: Path) -> None:
    """As in /tmp: a sticky folder, where a file that another user has made cannot be opened to write."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o1777)
    checkout = place / "checkout"
    (checkout / "ci").mkdir(parents=True)
    for name in ("run.sh", "common.sh", "help.sh"):
        shutil.copy(ROOT / "ci" / name, checkout / "ci" / name)
    nox = place / "bin" / "nox"
    nox.parent.mkdir()
    nox.write_text("#!/bin/sh\necho started\n")
    nox.chmod(0o755)
    lock, no_preflight = place / "lock", place / "bin" / "python"
    no_preflight.write_text("#!/bin/sh\n")
    no_preflight.chmod(0o755)
    env = os.environ | {"PATH": f"{nox.parent}:{os.environ['PATH']}", "PYTHON": str(no_preflight)}
    env |= {"LOCKSTEP_RUNS": str(place / "runs")}
    (place / "runs").mkdir()
    (place / "runs").chmod(0o777)
    env |= {"LOCKSTEP_LOCK": str(lock), "LOCKSTEP_LOCK_WAIT": "0"}

    def start(user: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(checkout / "ci" / "run.sh")],
            env=env, user=user, group=user, extra_groups=[], cwd="/",
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    try:
        for user in (12345, 12346, 0):
            done = start(user)
            assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
        assert lock.stat().st_uid == 12345
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert start(12346).returncode == 3
        lock.chmod(0o600)
        done = start(12346)
        assert done.returncode == 2
        assert "expected a file that this user can read; LOCKSTEP_LOCK names another one" in done.stderr
        lock.unlink()
        lock.symlink_to(place / "elsewhere")
        assert start(12346).returncode == 2
        assert not (place / "elsewhere").exists()
    finally:
        shutil.rmtree(place)


def test_a_run_is_found_by_another_name_of_its_folder(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    assert [found.pid for found in leftovers.find(tmp_path / "link")] == [process.pid]
    moved = tmp_path / "moved"
    (tmp_path / "runs").rename(moved)
    (tmp_path / "runs").symlink_to(moved)
    assert [found.pid for found in leftovers.find(moved)] == [process.pid]


def test_two_runs_do_not_meet_on_a_host(tmp_path: Path) -> None:
    nox = tmp_path / "bin" / "nox"
    nox.parent.mkdir()
    nox.write_text(f'#!/bin/sh\necho $$ "$@" >>{tmp_path}/started\nsleep ${{HOLD:-0}}\n')
    nox.chmod(0o755)
    passes = tmp_path / "bin" / "python"
    passes.write_text("#!/bin/sh\n")
    passes.chmod(0o755)
    env = {
        "PATH": f"{nox.parent}:{os.environ['PATH']}",
        "LOCKSTEP_LOCK": str(tmp_path / "lock"),
        "LOCKSTEP_LOCK_WAIT": "0",
        "LOCKSTEP_RUNS": str(tmp_path / "runs"),
        "PYTHON": str(passes),
    }
    first = subprocess.Popen(
        [str(ROOT / "ci" / "run.sh"), "--steps", "2"], env=os.environ | env | {"HOLD": "30"}
    )
    until = time.monotonic() + 10
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.05)
    second = ci("run.sh", env=env)
    assert (second.returncode, second.stderr.strip()) == (
        3,
        f"another run on this host holds {tmp_path}/lock",
    )
    started = (tmp_path / "started").read_text()
    assert started == f"{first.pid} --session gpu_stress -- --out {tmp_path}/runs --steps 2\n", (
        "the script is nox by now"
    )
    first.terminate()
    assert first.wait(timeout=5) == -15


ROWS = [
    {"name": "control", "fault": None, "remedy": None, "expected": "in step", "as_expected": True,
     "wrong": "", "ledgers": "/l", "verdict": "in step", "sentence": "All agree.", "group": "", "waiting": [],
     "absent": [],
     "seconds_to_verdict": 2.5, "seconds": 100.0},
    {"name": "without the fix", "fault": {"name": "late rank"}, "remedy": None, "expected": "stuck",
     "as_expected": False, "wrong": "expected group rollout.dp, got a|b \x1b[31m<b>", "ledgers": "/l",
     "verdict": "stuck", "sentence": "Rank 0 waits.", "group": "rollout.dp", "waiting": [0], "absent": [1],
     "seconds_to_verdict": 5.1, "seconds": 80.0},
    {"name": "with the fix", "fault": {"name": "late rank"}, "remedy": "independent ranks",
     "expected": "in step", "as_expected": False, "wrong": "a ledger cannot be read", "ledgers": "/l"},
]  # fmt: skip


def test_summary_on_the_jobs_page_and_for_junit(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(ROWS))
    page = tmp_path / "page.md"
    env = {"LOCKSTEP_RUNS": str(tmp_path), "GITHUB_STEP_SUMMARY": str(page)}
    assert ci("summary.sh", env=env).returncode == 1
    text = page.read_text()
    assert text.startswith("## gpu_stress: 2 of 3 runs did not end as they must\n")
    assert "| control | none | none | in step | as it must | 2.5 s | 100.0 s |" in text
    assert "| stuck (rollout.dp: 0 waits, 1 absent) | **WRONG** |" in text
    assert "a\\|b" in text
    assert "<b>" not in text
    assert 'tests="3" failures="1" errors="1"' in (tmp_path / "junit.xml").read_text()
    (tmp_path / "summary.json").write_text(json.dumps(ROWS[:1]))
    done = ci("summary.sh", env={"LOCKSTEP_RUNS": str(tmp_path)})
    assert (done.returncode, done.stdout.partition("\n")[0]) == (
        0,
        "## gpu_stress: all runs ended as they must",
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "No such file"), ("[{", "not JSON"), ('{"a": 1}', "expected a list"), ("[]", "no run")],
)
def test_no_summary_is_no_success(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    done = ci("summary.sh", env={"LOCKSTEP_RUNS": str(tmp_path)})
    assert done.returncode == 1
    assert told in done.stdout
    assert 'errors="1"' in (tmp_path / "junit.xml").read_text()


def begun(folder: Path, *refused: str) -> None:
    (folder / "run.json").write_text(
        json.dumps(
            {"begin": "2026-01-02T02:00:00Z", "commit": "0a1b2c", "host": "node-7", "refused": refused,
             "versions": {"driver": "570.1"}}
        )
    )  # fmt: skip


GOOD = {**ROWS[0], "begin": "2026-01-02T02:00:09Z", "planned": ["control"]}


@pytest.mark.parametrize(
    ("rows", "refused", "told", "errors"),
    [
        ([GOOD], [], "all runs ended as they must", 0),
        ([{**GOOD, "begin": "2026-01-01T02:00:09Z"}], [], "of another run", 1),
        ([ROWS[0]], [], "of another run", 1),
        ([{**GOOD, "planned": ["control", "with the fix"]}], [], "not run: with the fix", 1),
        ([GOOD], ["GPUs: GPUs found: none"], "Did not run: GPUs: GPUs found: none", 1),
    ],
)
def test_only_this_runs_whole_result_is_green(
    tmp_path: Path, rows: list[dict[str, object]], refused: list[str], told: str, errors: int
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(rows))
    begun(tmp_path, *refused)
    done = ci("summary.sh", env={"LOCKSTEP_RUNS": str(tmp_path)})
    assert done.returncode == errors
    assert told in done.stdout
    assert "Begun 2026-01-02T02:00:00Z on node-7, commit 0a1b2c; driver 570.1." in done.stdout
    assert f'errors="{errors}"' in (tmp_path / "junit.xml").read_text()


def test_a_refused_night_does_not_show_the_night_before(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "summary.json").write_text(json.dumps([GOOD]))
    env = fake_smi.install(tmp_path / "smi", 0) | {"LOCKSTEP_LOCK": str(tmp_path / "lock")}
    env["LOCKSTEP_RUNS"] = str(tmp_path / "runs")
    assert ci("run.sh", env=env).returncode == 1
    assert not (tmp_path / "runs" / "summary.json").exists()
    done = ci("summary.sh", env=env)
    assert done.returncode == 1
    assert "gpu_stress: Did not run: " in done.stdout
    assert "GPUs found: none; needed: 4" in (tmp_path / "runs" / "junit.xml").read_text()


@pytest.mark.parametrize("script", ["run.sh", "end.sh", "collect.sh", "summary.sh", "preflight.sh"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_asking_for_help_starts_nothing(tmp_path: Path, script: str, option: str) -> None:
    nox = tmp_path / "bin" / "nox"
    nox.parent.mkdir()
    nox.write_text("#!/bin/sh\nexit 9\n")
    nox.chmod(0o755)
    env = {"PATH": f"{nox.parent}:{os.environ['PATH']}", "LOCKSTEP_RUNS": str(tmp_path / "runs")}
    done = ci(script, option, env=env | {"LOCKSTEP_LOCK": str(tmp_path / "lock")}, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: ci/{script}")
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize("arguments", [[], [""], ["a", "b"], ["-x", "a"]])
def test_collecting_into_no_folder_is_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    done = ci("collect.sh", *arguments, env={"LOCKSTEP_RUNS": str(tmp_path / "runs")}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: ci/collect.sh FOLDER (new or empty)\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["collect", "end", "preflight", "run", "summary"])
@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["a", "--help"]])
def test_help_is_printed_and_nothing_is_started(tmp_path: Path, name: str, arguments: list[str]) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    env = {
        "PYTHON": str(program),
        "LOCKSTEP_RUNS": str(tmp_path / "runs"),
        "LOCKSTEP_LOCK": str(tmp_path / "lock"),
    }
    done = ci(f"{name}.sh", *arguments, env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: ci/{name}.sh" in done.stdout
    assert "shellcheck" not in done.stdout
    assert list(tmp_path.iterdir()) == [program]


def test_collecting_into_one_folder(tmp_path: Path) -> None:
    env = {"LOCKSTEP_RUNS": str(tmp_path / "runs")}
    done = ci("collect.sh", "to here", env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "to here" / "MANIFEST.txt").is_file()


def test_only_the_standard_library_is_needed() -> None:
    code = "import sys; sys.path.insert(0, 'src')\nfrom lockstep.ci import collect, preflight, summary"
    subprocess.run([sys.executable, "-S", "-I", "-c", code], cwd=ROOT, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not on PATH")
def test_shellcheck() -> None:
    scripts = [str(path) for path in (ROOT / "ci").glob("*.sh")]
    subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_lock_of_another_user_is_told(tmp_path: Path) -> None:
    (tmp_path / "lock").touch(mode=0o400)
    done = ci("run.sh", env={"LOCKSTEP_LOCK": str(tmp_path / "lock"), "LOCKSTEP_RUNS": str(tmp_path)})
    assert (done.returncode, "belongs to another user" in done.stderr) == (3, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_a_sentence_and_no_success(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(ROWS[:1]))
    (tmp_path / "junit.xml").symlink_to("/dev/full")
    done = ci("summary.sh", env={"LOCKSTEP_RUNS": str(tmp_path)})
    assert (done.returncode, done.stderr) == (2, "lockstep: No space left on device\n")
