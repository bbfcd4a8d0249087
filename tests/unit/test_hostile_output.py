"""What stands in ledgers, logs, scripts, dumps and file names reaches no terminal as anything but text."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledgers import Job, incident
from rich.table import Table
from rich.text import Text

from lockstep.experiments.stress.dry_run import _quote
from lockstep.report import safe_text
from lockstep.report.console import Console
from lockstep.report.junit import junit
from lockstep.report.page import markdown
from lockstep.report.progress import ProgressLine

DATA = Path(__file__).parents[1] / "data"
FORGED = "in step  all is well"
HOSTILE = [
    "\x1b]52;c;Y3VybCBldmlsfHNo\x07",  # puts a command into the clipboard
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[H",
    "\x9b2J\x9d52;c;eA==\x9c",  # the same in C1
    "\u202egpj.\u2066\u2069\u200f",
    f"\n{FORGED}\n",
    f"\r{FORGED}\r",
    f"\u2028{FORGED}\x85{FORGED}\x0b{FORGED}\x0c",
    "[red]x[/red][/][link=http://evil]y[/link]:bomb:\\",
    "\x08\x7f\x00\ufeff",
]
ALL = "".join(HOSTILE)
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def run(*arguments: str | Path | bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "lockstep", *map(os.fsencode, arguments)]
    return subprocess.run(argv, capture_output=True, timeout=120, check=False, **options)


def check(done: subprocess.CompletedProcess[bytes], codes: tuple[int, ...] = (0, 1, 2, 3, 4)) -> str:
    """Only text on both streams, no forged line, no error that nobody foresaw; returns both together."""
    assert done.returncode in codes, done.stderr
    out, err = done.stdout.decode().replace("\r\n", "\n"), done.stderr.decode()
    for text in (out, err):
        assert not UNSAFE.search(text), repr(UNSAFE.search(text))
        assert not any(line.startswith(FORGED) for line in text.splitlines())
    assert "Traceback" not in err
    return out + err


def with_values(value: Any, key: str) -> Any:
    """The same with all that is hostile behind each text of that key."""
    if isinstance(value, dict):
        return {
            name: inner + ALL if name == key and isinstance(inner, str) else with_values(inner, key)
            for name, inner in value.items()
        }
    return [with_values(inner, key) for inner in value] if isinstance(value, list) else value


def texts(value: Any) -> Iterator[str]:
    """Names of the fields that have a text."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from [name] if isinstance(inner, str) else texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def test_ledgers(tmp_path: Path) -> None:
    files = {}
    for path in sorted(Job(incident(1)).write(tmp_path / "job").rglob("*.jsonl")):
        files[path] = [json.loads(line) for line in path.read_text().splitlines()]
    keys = {key for rows in files.values() for key in texts(rows)}
    assert len(keys) > 5
    seen = False
    for key in sorted(keys):
        for path, rows in files.items():
            path.write_text("".join(json.dumps(with_values(row, key)) + "\n" for row in rows))
        seen |= "\\x1b" in check(run("verify", tmp_path / "job"))
        data = run("verify", tmp_path / "job", "--json").stdout
        assert data.isascii()
        assert b"\x7f" not in data
        if data:
            json.loads(data)
    assert seen


def test_logs(tmp_path: Path) -> None:
    lines = (DATA / "logs" / "incident.log").read_text().splitlines()
    log = tmp_path / "job.log"
    for spoiled in (
        [line + ALL for line in lines],
        [ALL + line for line in lines],
        [line.replace("watchdog", f"watchdog{ALL}").replace("=", f"={ALL}") for line in lines],
    ):
        log.write_text("\n".join(spoiled), newline="")
        check(run("diagnose", log))
    data = run("diagnose", log, "--json").stdout
    assert data.isascii()
    json.loads(data)


@pytest.mark.parametrize("payload", [ALL.replace("\n", ""), HOSTILE[5]])
def test_scripts(tmp_path: Path, payload: str) -> None:
    lines = (DATA / "scripts" / "launch.sh").read_text().splitlines()
    script = tmp_path / "launch.sh"
    payload = payload.replace("\x00", "")
    for spoiled in (
        [line if line.endswith("\\") else f"{line} # {payload}" for line in lines],
        [re.sub(r"(?<=[= ])\d+", lambda found: f"'{found[0]}{payload}'", line) for line in lines],
        [f"export EVIL='{payload}' MASTER_PORT='29500{payload}' CUDA_VISIBLE_DEVICES='{payload}'", *lines],
    ):
        script.write_text("\n".join(spoiled) + "\n", newline="")
        for option in ([], ["--fix"]):
            check(run("audit", script, *option))
        assert run("audit", script, "--json").stdout.isascii()


def test_dumps(tmp_path: Path) -> None:
    source = DATA / "dumps" / "gloo-torch-2.8-json"
    for path in source.iterdir():
        text = path.read_text()
        for word in ("all_reduce", "default_pg", "gloo", "step"):
            text = text.replace(word, word + json.dumps(ALL[:60])[1:-1])  # names have a limit
        (tmp_path / path.name).write_text(text)
    assert "\\x1b" in check(run("dumps", tmp_path))
    assert run("dumps", tmp_path, "--json").stdout.isascii()


@pytest.mark.parametrize(
    "payload", ["".join(HOSTILE[:6]), b"".join(map(str.encode, HOSTILE[6:])) + b"\xff\xfe\x9b2J"]
)
def test_file_names(tmp_path: Path, payload: str | bytes) -> None:
    """That exist, that do not, and that are unreadable; of files and folders; in every command."""
    name = os.fsdecode(os.fsencode(payload).replace(b"\x00", b"").replace(b"/", b"_"))
    (tmp_path / name).mkdir()
    job, log, script, dumps = (tmp_path / name / what for what in ("job", "log", "script", "dumps"))
    for path, command in ((job, "verify"), (log, "diagnose"), (script, "audit"), (dumps, "dumps")):
        check(run(command, path))
    Job(incident(1)).write(job)
    shutil.copy(DATA / "logs" / "incident.log", log)
    shutil.copy(DATA / "scripts" / "launch.sh", script)
    shutil.copytree(DATA / "dumps" / "gloo-torch-2.8", dumps)
    (tmp_path / name / "summary.json").write_text("not ours")
    out = ["--out", tmp_path / name]
    for arguments in (
        ["verify", job],
        ["diagnose", log],
        ["diagnose", job],
        ["audit", script],
        ["audit", script, "--fix"],
        ["dumps", dumps],
        ["dumps", job],
        ["run", "--dry-run", *out],
        ["run", *out],
        ["run", "--only", name],
        ["faults", *out],
        ["remedies", *out],
        ["soak", "--stress-minutes", "1", "--remedy", name, *out],
        ["bisect", "--bad", name, *out],
        ["bisect", "--package", name],
        [name],
    ):
        check(run(*arguments, cwd=tmp_path))
    check(run("probe-release", name), (128,))


def test_colours_are_lockstep_s_own(tmp_path: Path) -> None:
    """On a terminal there are escapes: bold, red and the like, and none that come from the ledgers."""
    job = Job(incident(1)).write(tmp_path / "job")
    for path in job.rglob("*.jsonl"):
        text = path.read_text()
        path.write_text(text.replace('"all_reduce"', json.dumps("all_reduce" + ALL)))
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "400"}
    argv = [sys.executable, "-m", "lockstep", "verify", str(job)]
    with subprocess.Popen(argv, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        data = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:
                break
            data += more
    os.close(ours)
    assert process.returncode == 1
    text = data.decode().replace("\r\n", "\n")
    assert "\x1b[1;31m" in text
    left = re.sub(r"\x1b\[(?:0|1|2|3[1-6]|1;3[1-6])m", "", text)
    assert not UNSAFE.search(left), repr(UNSAFE.search(left))
    assert "\\x1b]52" in left
    assert not any(line.startswith(FORGED) for line in left.splitlines())


def test_a_console_prints_one_line_whatever_it_is_given() -> None:
    out = io.StringIO()
    console = Console(file=out, width=4000)
    console.print(f"a{ALL}")
    console.print(Text(f"b{ALL}"))
    console.print(Text.assemble(("c", "bold"), ALL))
    assert len(out.getvalue().splitlines()) == 3
    table = Table(box=None)
    table.add_column(f"head{ALL}")
    table.add_row(f"cell{ALL}")
    console.print(table)
    assert len(out.getvalue().splitlines()) == 5
    assert not UNSAFE.search(out.getvalue().replace("\n", ""))
    assert out.getvalue().count("[red]x[/red]") == 5


def test_a_progress_line(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    line = ProgressLine(f"run{ALL}", out)
    line(type("Tail", (), {"ledgers": []})(), 1.0, True)  # type: ignore[arg-type]
    line.close()
    assert not UNSAFE.search(out.getvalue().replace("\r\x1b[K", ""))
    assert "\n" not in out.getvalue()


def test_pages() -> None:
    row = {
        "name": f"run{ALL}", "fault": {"name": ALL}, "remedy": ALL, "as_expected": False, "wrong": ALL,
        "verdict": ALL, "sentence": ALL, "group": ALL, "waiting": [0], "absent": [1], "ledgers": ALL,
        "expected": ALL, "seconds": 1.0, "seconds_to_verdict": 1.0,
    }  # fmt: skip
    page = markdown([row], ALL + "</table>|![x](http://evil)")
    assert not UNSAFE.search(page.replace("\n", ""))
    assert not any(line.startswith(FORGED) for line in page.splitlines())
    assert not re.search(r"(?<!\\)\[|<[a-z/]", page)
    text = junit([row], ALL)
    assert not UNSAFE.search(text.replace("\n", ""))
    ElementTree.fromstring(text)


def test_what_is_no_danger_stays() -> None:
    for text in ("проба – 日本語 é 😀", "a\tb", "[red]", "C:\\new", "x\u200dy"):
        assert safe_text.one_line(text) == text
        assert safe_text.lines(f"{text}\r\n{text}\n") == f"{text}\r\n{text}\n"
    assert safe_text.one_line("a\nb\r\x00\x9b\u202e\udcff\U000e0041") == (
        "a\\nb\\r\\x00\\x9b\\u202e\\xff\\U000e0041"
    )


@pytest.mark.parametrize(
    "word", ["plain", "a b", "it's\n\\x41", "\x1b[2J'\\", "é\n", os.fsdecode(b"\xff\n"), ""]
)
def test_words_of_a_shell_are_one_line_and_stay_what_they_are(word: str) -> None:
    quoted = _quote(word)
    assert safe_text.one_line(quoted) == quoted
    done = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True)
    assert done.stdout == os.fsencode(word)


def test_nothing_goes_past_the_safe_streams() -> None:
    """Only those write to a bare stream who spell out foreign text themselves. The probe prints in the job's
    processes, not in a command."""
    source = Path(safe_text.__file__).parents[1]
    past = re.compile(
        r"rich\.console|rich import console|streams import .*plain|(?:stdout|stderr|__)\.buffer"
        r"|sys\.__std|os\.write\([12]\b|ensure_ascii=False"
    )
    paths = [path for path in source.rglob("*.py") if path.parent.name != "inside"]
    found = {str(path.relative_to(source)) for path in paths if past.search(path.read_text())}
    assert found == {"report/console.py", "report/progress.py"}
