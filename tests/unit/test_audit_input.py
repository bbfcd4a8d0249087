"""Bad input: a clear error that names file and line, and exit code 2."""

from __future__ import annotations

import gzip
import subprocess
import sys

import pytest
from audits import SCRIPTS, script
from typer.testing import CliRunner

from lockstep.audit import AuditError, from_texts
from lockstep.audit.model import MAX_TEXT
from lockstep.audit.shell.syntax import Syntax
from lockstep.audit.shell.text import decode
from lockstep.cli import app


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x:1: empty: expected a launch script"),
        (b" \n\n", "x:1: empty"),
        (b"#!/bin/bash\n\x7fELF\0\0", "x:2: a NUL byte: expected a launch script, this is a binary file"),
        (b"ok\n\xff\xfe\xfa\xff", "x:2: neither UTF-8 nor GB 18030 text"),
        (b"a" * (1 << 20) + b"b", "larger than 256 KiB"),
    ],
)
def test_unreadable(data, message):
    with pytest.raises(AuditError, match="expected a launch script") as caught:
        decode(data, "x")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "data", [gzip.compress(script().encode()), "swift rollout\n".encode("utf-16"), b"\xff\xfe\xfd\x81", b""]
)
@pytest.mark.parametrize("option", [[], ["--versions"]])
def test_what_is_no_text_is_refused_with_a_sentence(data, option, tmp_path):
    (tmp_path / "a").write_bytes(data)
    good = [str(SCRIPTS / "launch.sh")] if option else []
    result = CliRunner().invoke(app, ["audit", *good, *option, str(tmp_path / "a")])
    assert result.exit_code == 2
    assert result.stderr.startswith("lockstep: ")
    assert "expected a" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_closed_stdin_is_said():
    code = "import os, sys; os.close(0); from lockstep.cli import main; main()"
    asked = [sys.executable, "-c", code, "audit", "/dev/stdin"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    # A closed standard input is opened anew as an empty one, so that no file takes its number.
    assert done.stderr.startswith("lockstep: /dev/stdin")
    assert "expected a launch script" in done.stderr or "cannot be read" in done.stderr


def test_chinese_windows_encoding_is_read():
    assert decode("# 启动\nswift rollout".encode("gb18030"), "x") == "# 启动\nswift rollout"
    assert decode(b"\xef\xbb\xbfswift", "x") == "swift"


def test_nothing_of_the_job_in_it():
    with pytest.raises(AuditError) as caught:
        from_texts([("x.sh", "cd /x\nmake\npython train.py --a 1\n")])
    text = str(caught.value)
    assert text.startswith(
        "x.sh:1: no command of ms-swift or vLLM in 3 lines; found the commands cd, make, python."
    )
    assert "Expected swift rollout" in text


def test_too_much_to_follow():
    doubling = (
        "f0() { :; }\n" + "\n".join(f"f{i}() {{ f{i - 1}; f{i - 1}; }}" for i in range(1, 40)) + "\nf39\n"
    )
    with pytest.raises(AuditError, match="commands to follow: expected a launch script"):
        from_texts([("x.sh", doubling)])


def test_too_many_processes():
    with pytest.raises(AuditError, match=r"x\.sh:201: more than 200 processes"):
        from_texts([("x.sh", "swift rollout --model m\n" * 300)])


def test_the_parser_has_a_limit_of_cpu_time_and_says_so():
    slow = "swift rollout --model m\n" + "<<EOF\n" * 40_000
    with pytest.raises(AuditError, match=r"x\.sh:1: cannot be parsed in 3 s of CPU: expected"):
        from_texts([("x.sh", slow)])


def test_the_scripts_quoted_in_a_script_share_its_time():
    syntax = Syntax(limit_s=0)
    assert syntax.tree(b"swift rollout\n") is None
    assert Syntax().tree(b"swift rollout\n") is not None


def test_no_code_is_taken_from_the_folder_in_which_the_audit_is_run(tmp_path):
    for name in ("tree_sitter_bash", "tree_sitter", "lockstep", "resource"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\n")
    (tmp_path / "x.sh").write_text(script() + "# a comment\n" * 4000)
    # As the installed command has it: no current folder on the path.
    code = "import sys; sys.path.pop(0); from lockstep.cli import main; main()"
    asked = [sys.executable, "-c", code, "audit", "x.sh"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "no hazard found" in done.stdout
    assert not (tmp_path / "executed").exists()


def test_endless_recursion_and_growth_are_bounded():
    from_texts([("x.sh", "f() { f; }\nf\nswift rollout --model m")])
    grow = "A=aaaaaaaaaaaaaaaa\n" + "A=$A$A$A$A\n" * 200
    (process,) = from_texts([("x.sh", f"{grow}swift rollout --model $A")]).processes
    assert len(process.option("model").text) <= MAX_TEXT


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.sh"], 2, "missing.sh: cannot be read: No such file"),
        (["{scripts}"], 2, "cannot be read: Is a directory"),
        (["{scripts}/launch.sh", "--remedy", "x"], 2, "expected one of independent-ranks, open-wave"),
        (
            ["{scripts}/launch.sh", "--remedy", "open-wave"],
            2,
            "--remedy open-wave: expected together with --fix",
        ),
        (["{scripts}/launch.sh", "--remedy", "open-wave", "--fix"], 1, ""),
        (["{scripts}/launch.sh", "--versions", "{scripts}/docker.sh"], 2, "docker.sh:2: "),
        (
            ["{scripts}/launch.sh", "--versions", "0.11.0"],
            2,
            "0.11.0: cannot be read: No such file or directory: expected a file with lines like "
            "vllm==0.11.0, as pip freeze prints them",
        ),
        (
            ["{scripts}/launch.sh", "--versions", "/dev/null"],
            2,
            "/dev/null:1: empty: expected a file with lines",
        ),
        (["/dev/null"], 2, "/dev/null:1: empty: expected a launch script"),
        (["{scripts}/launch.sh"], 1, ""),
        (["{scripts}/slurm.sbatch"], 0, ""),
        (["{scripts}/torchrun.sh"], 0, ""),
        (["{scripts}/docker.sh", "--fix"], 1, "remove MASTER_PORT by hand"),
        ([], 2, "Missing argument"),
    ],
)
def test_exit_codes(arguments, code, message):
    result = CliRunner().invoke(app, ["audit", *(a.format(scripts=SCRIPTS) for a in arguments)])
    assert (result.exit_code, result.exception is None or isinstance(result.exception, SystemExit)) == (
        code,
        True,
    )
    assert message in result.stderr


def test_needs_nothing_of_the_stack_and_little_time():
    code = (
        "import sys, time; t = time.perf_counter(); import lockstep.audit; "
        "assert not {'torch', 'vllm', 'numpy', 'rich'} & set(sys.modules); print(time.perf_counter() - t)"
    )
    seconds = float(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    )
    assert seconds < 2


def test_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from_texts([("x.sh", "touch a\nX=$(touch b)\n`touch c`\neval touch d\n" + script())])
    assert list(tmp_path.iterdir()) == []
