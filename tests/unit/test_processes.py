from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import lockstep
from lockstep.run import shm
from lockstep.run.process_tree import (
    Command,
    ProcessTree,
    ProcessTreeError,
    StartError,
    WardenLostError,
    terminate_as_exit,
)
from lockstep.run.shutdown import MARKER, marked

PY = sys.executable
ZOO = str(Path(__file__).with_name("process_zoo.py"))
SLEEP = [PY, "-S", "-c", "import time; time.sleep(600)"]

# A program that uses the package as the command line does. argv: run id, grace, log, how, command...
RUNNER = """
import os, signal, sys, time
from pathlib import Path
from lockstep.job.processes import ProcessTree, terminate_as_exit
# As in a terminal, also where the tests themselves run under nohup or in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
run_id, grace, log, how = sys.argv[1:5]
with terminate_as_exit(), ProcessTree(run_id=run_id, grace_s=float(grace)) as tree:
    tree.start("zoo", sys.argv[5:], log=Path(log))
    if how == "forked" and os.fork() == 0:
        Path(log + ".fork").write_text(str(os.getpid()))
        time.sleep(600)
    while True:
        time.sleep(0.02)
"""


def wait_for(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.02)


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


class Zoo:
    """What tests/unit/process_zoo.py has started, from what its processes wrote down."""

    def __init__(self, folder: Path) -> None:
        self.run_id = uuid.uuid4().hex
        self.folder = folder
        folder.mkdir()
        self.argv = [PY, "-S", ZOO, str(folder)]

    def wait_until_ready(self) -> None:
        wait_for((self.folder / "ready").exists)
        self.processes = [psutil.Process(int(p.read_text())) for p in self.folder.glob("*.pid")]
        self.port = int((self.folder / "port").read_text())
        self.shm = (self.folder / "shm").read_text().split("\n")
        self.shm_folders = [path for path in Path(self.shm[2]).parents if path.name.startswith("zoo_")]
        assert len(self.shm_folders) == 1
        assert len(self.processes) == 7
        assert all(map(alive, self.processes))
        assert all(Path(path).exists() for path in self.shm)
        assert sorted(Path(path).name.split("_")[0].split("-")[0] for path in self.shm) == [
            "block",
            "psm",
            "sem.mp",
        ]
        assert self.with_run_id()
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", self.port))

    def with_run_id(self) -> list[int]:
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                if f"LOCKSTEP_RUN_ID={self.run_id}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def remains(self) -> list[str]:
        left = [f"process {p.pid}" for p in self.processes if alive(p)]
        left += [f"process {pid}, by run id" for pid in self.with_run_id()]
        left += [path for path in self.shm if Path(path).exists()]
        left += [str(path) for path in self.shm_folders if path.exists()]
        return left

    def assert_gone(self) -> None:
        assert self.remains() == []
        socket.create_server(("127.0.0.1", self.port)).close()


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    return Zoo(tmp_path / "zoo")


@pytest.fixture
def stranger() -> Iterator[Callable[[], None]]:
    """Another program of this user with shared memory; call it to check that it was left in peace."""
    held = Path(f"/dev/shm/psm_stranger_{uuid.uuid4().hex}")
    unheld = Path(f"/dev/shm/sem.mp-stranger-{uuid.uuid4().hex}")
    code = f"import time; f = open({str(held)!r}, 'w'); time.sleep(600)"
    with subprocess.Popen([PY, "-S", "-c", code], start_new_session=True) as process:
        wait_for(held.exists)
        unheld.touch()

        def check() -> None:
            assert process.poll() is None
            assert held.exists()
            assert unheld.exists()

        yield check
        process.kill()
    held.unlink()
    unheld.unlink()


def wardens() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "lockstep.run.reaper" in process.cmdline():
                found.append(process)
    return found


@contextlib.contextmanager
def runner(zoo: Zoo, tmp_path: Path, grace_s: float, how: str = "") -> Iterator[subprocess.Popen[bytes]]:
    path = str(Path(lockstep.__file__).parents[1])
    process = subprocess.Popen(
        [PY, "-c", RUNNER, zoo.run_id, str(grace_s), str(tmp_path / "zoo.log"), how, *zoo.argv],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        zoo.wait_until_ready()
        yield process
    finally:
        process.kill()
        process.wait()


def test_everything_has_ended_after_the_with_block(
    zoo: Zoo, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ProcessTree(run_id=zoo.run_id, grace_s=0.3) as tree:
        stranger = request.getfixturevalue("stranger")  # its files are as new as those of the job
        command = tree.start("zoo", zoo.argv, log=tmp_path / "zoo.log")
        zoo.wait_until_ready()
        infos = {info.pid: info for info in tree.pids()}
        assert {p.pid for p in zoo.processes} | {command.pid} <= set(infos)
        assert infos[int((zoo.folder / "stopped.pid").read_text())].state == "stopped"
        assert infos[command.pid].command == "zoo"
        assert infos[command.pid].cmdline == tuple(zoo.argv)
        assert 0 < tree.pss() <= tree.rss()
        assert tree.leftovers() == []
    zoo.assert_gone()
    assert tree.leftovers() == []
    assert tree.pids() == []
    assert command.poll() == -signal.SIGTERM
    assert wardens() == []
    stranger()


def test_an_exception_in_the_with_block_passes_and_ends_everything(zoo: Zoo, tmp_path: Path) -> None:
    def run() -> None:
        with ProcessTree(run_id=zoo.run_id, grace_s=0.1) as tree:
            tree.start("zoo", zoo.argv, log=tmp_path / "zoo.log")
            zoo.wait_until_ready()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    zoo.assert_gone()


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -2)],
)
def test_everything_ends_with_the_runner(
    zoo: Zoo, tmp_path: Path, number: signal.Signals, status: int, stranger: Callable[[], None]
) -> None:
    with runner(zoo, tmp_path, grace_s=0.3) as process:
        process.send_signal(number)
        assert process.wait(15) == status
        if number != signal.SIGKILL:
            zoo.assert_gone()
        wait_for(lambda: not zoo.remains())
    zoo.assert_gone()
    stranger()


def test_a_second_interrupt_ends_the_grace_not_the_ending(zoo: Zoo, tmp_path: Path) -> None:
    with runner(zoo, tmp_path, grace_s=60) as process:
        process.send_signal(signal.SIGINT)
        plain = psutil.Process(int((zoo.folder / "plain.pid").read_text()))
        wait_for(lambda: not alive(plain))
        time.sleep(0.3)
        assert process.poll() is None  # the deaf ones still have their grace
        process.send_signal(signal.SIGINT)
        process.wait(15)
        zoo.assert_gone()


def test_a_runner_killed_within_the_grace_leaves_nothing(zoo: Zoo, tmp_path: Path) -> None:
    with runner(zoo, tmp_path, grace_s=60) as process:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.kill()
        wait_for(lambda: not zoo.remains())


def test_a_fork_of_the_runner_that_lives_on_keeps_nothing_alive(zoo: Zoo, tmp_path: Path) -> None:
    with runner(zoo, tmp_path, grace_s=0.1, how="forked") as process:
        note = tmp_path / "zoo.log.fork"
        wait_for(lambda: note.exists() and note.read_text())
        fork = psutil.Process(int(note.read_text()))
        process.kill()
        try:
            wait_for(lambda: not zoo.remains())
            assert alive(fork)  # not one of the job
        finally:
            fork.kill()


def test_a_killed_warden_is_noticed_and_replaced(
    zoo: Zoo, tmp_path: Path, stranger: Callable[[], None]
) -> None:
    with ProcessTree(run_id=zoo.run_id, grace_s=0.1) as tree:
        command = tree.start("zoo", zoo.argv, log=tmp_path / "zoo.log")
        zoo.wait_until_ready()
        tree.pids()  # from here the runner knows the one without an environment
        wait_for(lambda: command.poll() is None and len(command.shared_memory) == 3)
        wardens()[0].kill()
        wait_for(lambda: not psutil.pid_exists(command.pid))  # the command itself dies with its warden
        with pytest.raises(WardenLostError, match="'zoo' was ended: its warden was killed"):
            wait_for(lambda: command.poll() is not None)
        zoo.assert_gone()
        assert tree.leftovers() == []
    stranger()


def test_a_killed_warden_that_nobody_noticed_leaves_nothing(zoo: Zoo, tmp_path: Path) -> None:
    with ProcessTree(run_id=zoo.run_id, grace_s=0.1) as tree:
        tree.start("zoo", zoo.argv, log=tmp_path / "zoo.log")
        zoo.wait_until_ready()
        tree.pids()
        wardens()[0].kill()
    zoo.assert_gone()


def test_a_terminated_or_stopped_warden_ends_its_command(zoo: Zoo, tmp_path: Path) -> None:
    with ProcessTree(run_id=zoo.run_id, grace_s=0.1) as tree:
        first = tree.start("sleep", SLEEP, log=tmp_path / "sleep.log")
        wardens()[0].terminate()
        wait_for(lambda: first.poll() == -signal.SIGTERM)
        assert not psutil.pid_exists(first.pid)
        tree.start("zoo", zoo.argv, log=tmp_path / "zoo.log")
        zoo.wait_until_ready()
        (warden,) = wardens()  # the other one is a zombie, and has no command line
        warden.suspend()
    zoo.assert_gone()
    assert wardens() == []


def test_stop_ends_one_command_with_its_daemons_only(zoo: Zoo, tmp_path: Path) -> None:
    with ProcessTree(run_id=uuid.uuid4().hex, grace_s=30) as tree:
        other = tree.start("other", SLEEP, log=tmp_path / "other.log")
        command = tree.start("zoo", zoo.argv, log=tmp_path / "zoo.log", env={"LOCKSTEP_RUN_ID": "replaced"})
        zoo.run_id = tree.run_id
        zoo.wait_until_ready()
        tree.stop(command, grace_s=0.1)
        assert zoo.with_run_id() == [other.pid]
        assert [info.pid for info in tree.pids()] == [other.pid]
        assert other.poll() is None
        tree.stop(command)
        tree.stop(other)
        assert other.poll() == -signal.SIGTERM
    zoo.assert_gone()


@pytest.mark.parametrize(
    ("code", "status"), [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)]
)
def test_the_exit_status_is_that_of_the_command(tmp_path: Path, code: str, status: int) -> None:
    with ProcessTree() as tree:
        command = tree.start("short", [PY, "-S", "-c", code], log=tmp_path / "log")
        wait_for(lambda: command.poll() is not None)
        assert command.poll() == status


def test_what_outlives_its_command_is_listed_and_ended(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    with ProcessTree(grace_s=0.1) as tree:
        command = tree.start("parent", [PY, "-c", code], log=tmp_path / "log")
        wait_for(lambda: command.poll() == 0)
        (info,) = tree.pids()
        assert info.name == "sleep"
        process = psutil.Process(info.pid)
    assert not alive(process)


def test_a_process_is_asked_first_and_has_its_grace(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def leave(*_):\n    time.sleep(0.3); print('in peace', flush=True); sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, leave); print('up', flush=True); time.sleep(600)"
    )
    log = tmp_path / "new" / "log"
    with ProcessTree(grace_s=20) as tree:
        command = tree.start("polite", [PY, "-S", "-c", code], log=log)
        wait_for(lambda: "\nup" in log.read_text())
    assert command.poll() == 7
    assert log.read_text().startswith(f"$ {PY} -S -c")
    assert log.read_text().endswith("in peace\n")


def test_one_that_another_daemon_started_is_found_by_its_environment(tmp_path: Path) -> None:
    with ProcessTree(grace_s=0.1) as tree:
        command = tree.start("sleep", SLEEP, log=tmp_path / "log")
        token = psutil.Process(command.pid).environ()[MARKER]
        escaped = subprocess.Popen(SLEEP, env={MARKER: token})
        similar = subprocess.Popen(SLEEP, env={MARKER: token + "0"})
        wait_for(lambda: escaped.pid in [p.pid for p in marked(token)])
    assert escaped.wait(5) == -signal.SIGTERM
    assert similar.poll() is None
    similar.kill()
    similar.wait()


def test_environment_and_folder_of_the_command(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), *map(os.environ.get, ['A', 'LOCKSTEP_RUN_ID', 'SPT_NOENV']))"
    with ProcessTree(run_id="one") as tree:
        env = {"A": "\udcff", "PYTHONIOENCODING": "utf-8:surrogateescape"}
        command = tree.start("env", [PY, "-S", "-c", code], log=tmp_path / "log", env=env, cwd=tmp_path)
        wait_for(lambda: command.poll() == 0)
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert lines[-1] == os.fsencode(tmp_path) + b" \xff one 1"


@pytest.mark.parametrize(
    ("argv", "cwd", "log", "text"),
    [
        (["no-such-command"], ".", "log", "No such file or directory: 'no-such-command'"),
        (SLEEP, "no-such-folder", "log", "No such file or directory: '.*no-such-folder'"),
        (SLEEP, ".", "folder", "Is a directory: '.*folder'"),
        (SLEEP, ".", "file/log", "file"),
        (SLEEP, ".", "/dev/full", "No space left on device"),
        ([PY, "a\0b"], ".", "log", "null byte"),
        ([], ".", "log", "is empty"),
    ],
)
def test_a_command_that_cannot_start(tmp_path: Path, argv: list[str], cwd: str, log: str, text: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with ProcessTree() as tree:
        with pytest.raises(StartError, match=text) as caught:
            tree.start("broken", argv, log=tmp_path / log, cwd=tmp_path / cwd)
        assert "'broken'" in str(caught.value)
        assert not argv or str(tmp_path / log) in str(caught.value)
        assert wardens() == []
        working = tree.start("working", [PY, "-S", "-c", ""], log=tmp_path / "log")
        wait_for(lambda: working.poll() == 0)


def test_no_command_outside_of_the_with_block(tmp_path: Path) -> None:
    with pytest.raises(ProcessTreeError, match="'early' outside"):
        ProcessTree().start("early", SLEEP, log=tmp_path / "log")
    with ProcessTree() as tree:
        pass
    with pytest.raises(ProcessTreeError, match="'late' outside"):
        tree.start("late", SLEEP, log=tmp_path / "log")


def hold(tree: ProcessTree, path: Path, log: Path) -> Command:
    code = f"import time; f = open({str(path)!r}, 'a'); f.write('x'); f.flush(); time.sleep(600)"
    command = tree.start("holder", [PY, "-S", "-c", code], log=log)
    wait_for(lambda: path.exists() and path.stat().st_size)
    return command


def test_shared_memory_in_use_by_another_program_stays_and_is_named(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/nccl-{uuid.uuid4().hex}")
    with ProcessTree(grace_s=0.1) as tree:
        hold(tree, path, tmp_path / "log")
        file = path.open("rb")
        mapped = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        file.close()
    assert tree.leftovers() == [f"shared memory {path} is in use by process {os.getpid()}"]
    assert path.exists()
    mapped.close()
    assert tree.leftovers() == []
    assert not path.exists()


def test_shared_memory_of_two_commands_is_removed_with_the_last(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/nccl-{uuid.uuid4().hex}")
    with ProcessTree(grace_s=0.1) as tree:
        first = hold(tree, path, tmp_path / "1.log")
        second = hold(tree, path, tmp_path / "2.log")
        wait_for(lambda: second.poll() is None and str(path) in second.shared_memory)
        tree.stop(first)
        assert path.exists()
        assert tree.leftovers() == []
    assert not path.exists()


def test_shared_memory_that_was_there_before_stays(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/psm_{uuid.uuid4().hex}")
    path.touch()
    with ProcessTree(grace_s=0.1) as tree:
        hold(tree, path, tmp_path / "log")
    assert path.exists()
    path.unlink()


def test_shared_memory_of_a_process_that_crashed_before_the_end(tmp_path: Path) -> None:
    path = Path(f"/dev/shm/torch_{uuid.uuid4().hex}")
    with ProcessTree(grace_s=0.1) as tree:
        command = hold(tree, path, tmp_path / "log")
        wait_for(lambda: command.poll() is None and str(path) in command.shared_memory)
        os.kill(command.pid, signal.SIGKILL)
        wait_for(lambda: command.poll() == -9)
        assert path.exists()
    assert not path.exists()


def test_maps_are_read_only_for_files_of_unknown_owner(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    memory = shm.SharedMemory(shm.listing(str(tmp_path)), root=str(tmp_path))
    asked: list[int] = []

    def me() -> list[int]:
        asked.append(1)
        return [os.getpid()]

    with (tmp_path / "old").open():
        assert memory.observe(me) == {}
    assert asked == []
    with (tmp_path / "new").open("w"):
        assert list(memory.observe(me)) == [str(tmp_path / "new")]
        assert memory.observe(me) == {}
        assert len(asked) == 1
        assert "is in use by process" in memory.remove()[0]
    (tmp_path / "foreign").touch()
    for _ in range(10):
        assert memory.observe(me) == {}
    assert 1 < len(asked) < 10
    before = len(asked)
    memory.observe(me, thorough=True)
    assert len(asked) == before + 1
    assert memory.remove() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "old"]


def test_a_torch_tensor_on_its_way_belongs_to_the_process_in_its_name(tmp_path: Path) -> None:
    memory = shm.SharedMemory({}, root=str(tmp_path))
    names = [f"torch_{os.getpid()}_1_0", f"torch_{os.getpid()}0_1_0", f"nccl_{os.getpid()}_1", "torch_x"]
    for name in names:
        (tmp_path / name).touch()
    assert list(memory.observe(lambda: [os.getpid()])) == [str(tmp_path / names[0])]


def test_a_reused_name_is_not_the_file_that_was_owned(tmp_path: Path) -> None:
    memory = shm.SharedMemory({}, root=str(tmp_path))
    path = tmp_path / "name"
    with path.open("w"):
        memory.observe(lambda: [os.getpid()])
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(path)
    assert memory.remove() == []
    assert path.exists()


def test_terminate_as_exit_raises_and_restores() -> None:
    def run() -> None:
        with terminate_as_exit():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_terminate_as_exit_leaves_an_ignored_hangup_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminate_as_exit():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_that_kills_its_own_group_does_not_reach_the_warden(tmp_path: Path) -> None:
    with ProcessTree() as tree:
        command = tree.start("group", [PY, "-S", "-c", "import os; os.killpg(0, 9)"], log=tmp_path / "log")
        wait_for(lambda: command.poll() == -9)
        assert len(wardens()) == 1


def test_a_killed_warden_whose_processes_were_never_listed(tmp_path: Path) -> None:
    code = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(p.pid); time.sleep(600)"
    )
    log = tmp_path / "log"
    with ProcessTree(grace_s=0.1) as tree:
        tree.start("parent", [PY, "-u", "-c", code], log=log)
        wait_for(lambda: log.read_text().split("\n")[-2].isdigit())
        orphan = psutil.Process(int(log.read_text().split("\n")[-2]))
        wardens()[0].kill()
    assert not alive(orphan)
