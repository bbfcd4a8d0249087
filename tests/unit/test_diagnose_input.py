"""Files, folders, standard input, compression; the command's exit codes and its JSON."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.diagnose import InputError, diagnose

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
        (gzip.compress(b"x" * 1000)[:-20], "ended before"),
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


def test_a_folder_gives_its_logs_and_an_empty_one_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no log in this directory"):
        diagnose([str(tmp_path)])
    (tmp_path / "rollout").mkdir()
    (tmp_path / "rollout" / "out.txt").write_bytes((LOGS / "incident.log").read_bytes())
    (tmp_path / "model.bin").write_bytes(b"\0\1" * 1000)
    found = diagnose([str(tmp_path)])
    assert found.cause == "offline-wave-race"
    assert [Path(source.path).name for source in found.inputs] == ["out.txt"]


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
