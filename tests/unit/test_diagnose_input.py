"""Files, folders, standard input, compression; the command's exit codes and its JSON."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.diagnose import InputError, diagnose
from lockstep.diagnose import input_files as source
from lockstep.diagnose.render import render

LOGS = Path(__file__).parent.parent / "data" / "logs"
_RUN = """
import sys
class NoStack:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(name + " is not here")
BLOCKED = {"torch", "vllm", "swift", "transformers", "deepspeed", "numpy"} | set(sys.argv[1].split(","))
del sys.argv[1]
sys.meta_path.insert(0, NoStack())
from lockstep.cli import main
sys.argv[0] = "lockstep"
main()
"""


def lockstep(*arguments: str, without: str = "", stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, without, *arguments], capture_output=True, input=stdin, timeout=60
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("log", "code"), [("incident", 0), ("wave-middle", 1), ("nothing", 3), ("oom-after", 1), ("rank-died", 0)]
)
def test_exit_codes(log: str, code: int) -> None:
    done = lockstep("diagnose", str(LOGS / f"{log}.log"))
    assert (done.returncode, done.stderr) == (code, "")


def test_json_has_the_documented_fields() -> None:
    done = lockstep("diagnose", "--json", str(LOGS / "incident.log"))
    data = json.loads(done.stdout)
    assert data["v"] == 1
    documented = Path(__file__).parents[2] / "docs" / "diagnose.md"
    for name in [
        *data,
        *data["group"],
        *data["group"]["ranks"][0],
        *data["group"]["readings"][0],
        *data["causes"][0],
    ]:
        assert f"`{name}`" in documented.read_text(), name
    assert data["cause"] == "offline-wave-race"
    assert data["group"]["waiting"] == [0]
    assert data["causes"][0]["evidence_for"][0]["line"] == 7
    assert data["remedies"][0]["name"] == "independent ranks"


def test_standard_input_and_gzip() -> None:
    raw = (LOGS / "incident.log").read_bytes()
    for stdin in (raw, gzip.compress(raw)):
        done = lockstep("diagnose", "-", "--json", stdin=stdin)
        data = json.loads(done.stdout)
        assert (done.returncode, data["cause"], data["first"]["file"]) == (
            0,
            "offline-wave-race",
            "standard input",
        )


def test_compressed_files_by_content_not_name(tmp_path: Path) -> None:
    raw = (LOGS / "incident.log").read_bytes()
    (tmp_path / "a.log").write_bytes(gzip.compress(raw))
    assert diagnose([str(tmp_path / "a.log")]).cause == "offline-wave-race"
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "b.log").write_bytes(zstandard.ZstdCompressor().compress(raw))
    assert diagnose([str(tmp_path / "b.log")]).cause == "offline-wave-race"


def test_zstd_without_its_package_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "b.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 100)
    done = lockstep("diagnose", str(tmp_path / "b.zst"), without="zstandard")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install zstandard" in done.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        (b"\0" * 100, "expected text"),
        (gzip.compress(b"x" * 1000)[:-4], "ended before"),
    ],
)
def test_unreadable_input_is_named(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "x.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=expected):
        diagnose([str(path)])
    done = lockstep("diagnose", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"lockstep: {path}: ")


def zstd(raw: bytes, window_log: int = 20) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log, write_checksum=1)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return bytes(packer.compress(raw) + packer.flush())


def noise(lines: int) -> bytes:
    """Lines that compress badly, so that a file can be cut behind what is looked for."""
    rng = random.Random(1)
    return b"".join(rng.randbytes(40).hex().encode() + b"\n" for _ in range(lines))


@pytest.mark.parametrize("packed", [gzip.compress, zstd], ids=["gzip", "zstd"])
def test_what_is_left_of_a_damaged_file_is_used_and_the_damage_named(
    tmp_path: Path, packed: Callable[[bytes], bytes]
) -> None:
    incident = (LOGS / "incident.log").read_bytes()
    path = tmp_path / "x.log"
    whole = packed(incident + noise(20_000))
    path.write_bytes(whole[: len(whole) // 2])
    found = diagnose([str(path)])
    assert found.cause == "offline-wave-race"
    (problem,) = found.inputs[0].problems
    assert "damaged after" in problem
    assert problem in render(found)
    path.write_bytes(packed(noise(20_000))[:-2000])
    done = lockstep("diagnose", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "damaged after" in done.stderr
    assert "tells of no failure" in done.stderr
    flipped = bytearray(packed(noise(20_000)))
    flipped[len(flipped) // 2] ^= 0xFF
    path.write_bytes(bytes(flipped))
    assert lockstep("diagnose", str(path)).returncode == 2


def test_bytes_that_are_no_zstd_behind_its_first_four_are_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\xff" * 100)
    done = lockstep("diagnose", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "damaged after 0 bytes" in done.stderr


def test_a_zstd_file_gets_no_more_memory_than_the_zstd_command_would_give_it(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    path.write_bytes(zstd(b"all is well\n" * 100_000, window_log=31))
    with pytest.raises(InputError, match="more than 128 MiB of memory"):
        diagnose([str(path)])


def test_compressed_text_that_grows_beyond_measure_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_FREE", 1 << 16)
    monkeypatch.setattr(source, "_MAX_GROWTH", 50)
    raw = io.BufferedReader(io.BytesIO(gzip.compress(b"x" * (1 << 24))))  # type: ignore[arg-type]
    stream = source._decompressed(raw, "x")
    given = sum(len(part) for part in iter(lambda: stream.read(1 << 20), b""))
    assert given < 1 << 22
    assert stream.damage is not None
    assert "grows more than 50 fold" in stream.damage


def test_closed_standard_input_is_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "", "diagnose", "-"],
        stdin=None,
        capture_output=True,
        preexec_fn=lambda: os.close(0),
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"standard input is closed" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_file_of_a_folder_that_cannot_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so the refusal is put in by hand."""
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes((LOGS / "incident.log").read_bytes())
    real = Path.open

    def refusing(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "b.log":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refusing)
    found = diagnose([str(tmp_path)])
    assert [Path(read.path).name for read in found.inputs] == ["a.log", "b.log"]
    assert found.inputs[1].problems == ("cannot be read: Permission denied",)
    assert "b.log: cannot be read: Permission denied" in render(found)
    (tmp_path / "a.log").write_text("step 1\n")
    with pytest.raises(InputError, match=r"b\.log: cannot be read: Permission denied; what could be read"):
        diagnose([str(tmp_path)])


def test_a_folder_that_cannot_be_listed_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(top: str, *, onerror: Callable[[OSError], None]) -> list[object]:
        onerror(PermissionError(13, "Permission denied", top))
        return []

    monkeypatch.setattr(source.os, "walk", refusing)
    with pytest.raises(InputError, match="Permission denied"):
        diagnose([str(tmp_path)])


def test_a_folder_gives_its_logs_and_an_empty_one_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no log in this directory"):
        diagnose([str(tmp_path)])
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "out.txt").write_bytes((LOGS / "incident.log").read_bytes())
    (tmp_path / "model.bin").write_bytes(b"\0\1" * 1000)
    found = diagnose([str(tmp_path)])
    assert found.cause == "offline-wave-race"
    assert [Path(source.path).name for source in found.inputs] == ["out.txt"]


def test_a_launch_script_beside_the_logs_is_audited(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes((LOGS / "same-size.log").read_bytes())
    (tmp_path / "launch.sh").write_bytes((LOGS.parent / "scripts" / "launch.sh").read_bytes())
    found = diagnose([str(tmp_path)])
    assert {Path(read.path).name: read.what for read in found.inputs}[
        "launch.sh"
    ] == "a launch script: audited"
    assert any(piece.text.startswith("hazard: ") for piece in found.launch)
    assert "launch.sh: a launch script: audited" in render(found)
    (tmp_path / "launch.sh").unlink()
    assert diagnose([str(tmp_path)]).launch == ()


def test_a_list_of_packages_beside_the_logs_tells_the_release(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes((LOGS / "torch-2.3.log").read_bytes())
    before = diagnose([str(tmp_path)])
    (tmp_path / "freeze.txt").write_text("numpy==2.1.0\nvllm==0.8.5\ntorch==2.6.0\n")
    found = diagnose([str(tmp_path)])
    assert found.inputs[0].what == "a list of 3 packages: its releases are used"
    assert found.group is not None
    assert before.group is not None
    assert found.group.readings[0].releases == ("0.8.5",)
    assert before.group.readings[0].releases != ("0.8.5",)


def test_a_log_that_quotes_a_command_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"#!/bin/bash\ntorchrun train.py\n" + (LOGS / "incident.log").read_bytes())
    found = diagnose([str(path)])
    assert (found.inputs[0].what, found.cause) == ("a log", "offline-wave-race")


def test_an_empty_file_says_that_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"")
    done = lockstep("diagnose", str(tmp_path / "x.log"))
    assert done.returncode == 3
    assert "x.log is empty" in done.stdout
    (tmp_path / "y.log").write_bytes((LOGS / "incident.log").read_bytes())
    found = diagnose([str(tmp_path)])
    assert found.cause == "offline-wave-race"
    assert found.inputs[0].problems == ("it is empty",)


def test_a_silent_log_says_how_to_look_at_a_live_job() -> None:
    done = lockstep("diagnose", str(LOGS / "nothing.log"))
    assert done.returncode == 3
    assert "py-spy dump --pid" in done.stdout
    assert "TORCH_FR_BUFFER_SIZE" in done.stdout


def test_logs_of_several_jobs_are_said_to_be_so() -> None:
    names = ("incident", "control-flow", "mixed-batch", "never-connected")
    found = diagnose([str(LOGS / f"{name}.log") for name in names])
    assert "may be of several jobs" in found.conclusion
    assert "may be of several jobs" not in diagnose([str(LOGS / "incident.log")]).conclusion


def test_no_path_is_wrong_usage() -> None:
    assert lockstep("diagnose").returncode == 2


def test_it_answers_at_once() -> None:
    code = (
        "import time; start = time.perf_counter()\n"
        "from lockstep.diagnose import diagnose\n"
        f"diagnose([{str(LOGS / 'incident.log')!r}])\n"
        "print(time.perf_counter() - start)"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(3)]
    assert min(times) < 0.5


def test_speed_on_a_large_log(tmp_path: Path) -> None:
    """A quarter of what is promised: the machine may be busy."""
    line = (
        b"{'loss': 0.1234, 'grad_norm': 0.51234, 'learning_rate': 1.9e-06, 'reward': 0.61, 'epoch': 0.12}\n"
    )
    path = tmp_path / "big.log"
    path.write_bytes(line * 600_000)
    start = time.process_time()
    assert diagnose([str(path)]).cause is None
    assert path.stat().st_size / (time.process_time() - start) > 25e6
