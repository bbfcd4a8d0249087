"""Corrections: what is changed, in which style, and what is left to a person."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from audits import CHECK, ROLLOUT, TRAINER, audit, script
from typer.testing import CliRunner

from lockstep.audit import Severity
from lockstep.audit.cures import CAUSE, CURES
from lockstep.audit.fix import fix
from lockstep.audit.shell.syntax import Syntax
from lockstep.causes import CAUSES
from lockstep.cli import app
from lockstep.remedies.model import Tried

DP2 = f"{ROLLOUT} --vllm_data_parallel_size 2"


def fixed(text: str, remedy: str | None = None) -> tuple[str, list[str]]:
    (result,), left = fix([("x.sh", text)], None, remedy)
    return result.text, left


def test_remedies_are_the_catalogues():
    assert list(CURES.values()) == [remedy for remedy in CAUSES[CAUSE].remedies if isinstance(remedy, Tried)]
    assert next(iter(CURES)) == "independent-ranks"


@pytest.mark.parametrize("remedy", CURES)
def test_every_remedy_cures_or_is_left_to_a_person(remedy):
    text, left = fixed(script(rollout=f"{DP2} &"), remedy)
    cured = "offline-wave-race" not in {f.id for f in audit(text)}
    assert cured != bool(left)


@pytest.mark.parametrize(("swift", "stays"), [("4.2.0", False), ("4.2.1", True)])
def test_a_release_that_cures_itself_gets_no_cure(swift, stays):
    text = script(rollout=f"{DP2} &")
    (result,), left = fix([("x.sh", text)], {"ms-swift": swift, "vllm": "0.11.0"})
    assert (result.text == text) == stays
    assert left == []


def test_two_servers_are_left_to_a_person():
    text, left = fixed(script(rollout=f"{DP2} &"), "two-servers")
    assert text == script(rollout=f"{DP2} &")
    assert left[0].startswith("x.sh:2: two servers: write by hand: a swift rollout on each GPU")


def test_clean_script_stays():
    (result,), left = fix([("x.sh", script())])
    assert (result.diff, result.text, left) == ("", script(), [])


def test_last_line_without_end_stays():
    text = script().rstrip("\n")
    (result,), _ = fix([("x.sh", text)])
    assert "\\ No newline at end of file" in result.diff


@pytest.mark.parametrize(
    ("rollout", "remedy", "expected"),
    [
        (f"{DP2} &", None, f"{DP2} --external_plugins independent_ranks.py &"),
        (f"{DP2} --external_plugins a.py &", None, f"{DP2} --external_plugins a.py independent_ranks.py &"),
        (
            f"{DP2} --vllm_enable_expert_parallel true &",
            None,
            f"{DP2} --external_plugins open_wave.py --vllm_enable_expert_parallel true &",
        ),
        (f"{DP2} --vllm_use_async_engine=false &", "async-engine", f"{DP2} --vllm_use_async_engine=true &"),
        (
            f"{DP2} &",
            "tensor-parallel",
            f"{ROLLOUT} --vllm_data_parallel_size 1 --vllm_tensor_parallel_size 2 &",
        ),
        (
            f"{DP2} &",
            "no-engine-process",
            DP2.replace("swift", "VLLM_ENABLE_V1_MULTIPROCESSING=0 swift") + " &",
        ),
        (
            f"nohup {DP2.split(' ', 1)[1]} &",
            "no-engine-process",
            f"nohup env VLLM_ENABLE_V1_MULTIPROCESSING=0 {DP2.split(' ', 1)[1]} &",
        ),
        (f"MASTER_PORT=1 MASTER_ADDR=h {DP2} &", None, f"{DP2} --external_plugins independent_ranks.py &"),
        (
            'A=(--model m\n  --vllm_data_parallel_size 2)\nswift rollout "${A[@]}" &',
            "tensor-parallel",
            "A=(--model m\n  --vllm_data_parallel_size 1)\n"
            'swift rollout --vllm_tensor_parallel_size 2 "${A[@]}" &',
        ),
    ],
)
def test_cures(rollout, remedy, expected):
    text, left = fixed(script(rollout=rollout), remedy)
    assert text == script(rollout=expected)
    assert not left
    assert "offline-wave-race" not in {f.id for f in audit(text)}


def test_value_from_a_variable_is_left_to_a_person():
    text, left = fixed("A='--vllm_data_parallel_size 2 --model m'\nswift rollout $A", "tensor-parallel")
    assert "by hand" in " ".join(left)
    assert "--vllm_data_parallel_size 2" in text


def test_cure_for_hidden_position_goes_after_the_program():
    text, left = fixed("A='--vllm_data_parallel_size 2 --model m'\nswift rollout $A")
    assert text.endswith("swift rollout --external_plugins independent_ranks.py $A\n")
    assert not left


def test_sleep_becomes_a_loop_over_every_server():
    two = f"{ROLLOUT} &\n{ROLLOUT.replace('6,7', '5').replace('8001', '$PORT')} --host 10.0.0.1 &"
    text, left = fixed(script(rollout=two, wait="  sleep 60 # wait"))
    assert not left
    assert (
        '  until curl --silent --fail --output /dev/null --noproxy "*" "http://127.0.0.1:8001/health/"; do\n'
        in text
    )
    assert '"http://10.0.0.1:$PORT/health/"; do\n      sleep 2\n  done # wait\n' in text
    assert "kill -0" not in text
    assert "sleep-instead-of-health-check" not in {f.id for f in audit(text)}


def test_loop_watches_the_server_only_where_it_is_the_last_job():
    assert "kill -0 $!" in fixed(script(wait="sleep 60"))[0]
    assert "kill -0 $!" not in fixed(script(wait="tail -f log &\nsleep 60"))[0]


def test_port_that_cannot_be_written_again_is_left_to_a_person():
    text, left = fixed(script(rollout=ROLLOUT.replace("8001", "$(port)") + " &", wait="sleep 60"))
    assert "sleep 60" in text
    assert "health check" in left[0]


def test_inside_a_container():
    text, _ = fixed(f"docker run img bash -c '\nMASTER_PORT=1 \\\n{DP2}\n'\n{CHECK}\n{TRAINER}\n")
    assert f"bash -c '\n{DP2} --external_plugins independent_ranks.py\n'" in text


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("wait", ["sleep 60", "sleep 60 && echo up", "if true; then\n    sleep 60\nfi"])
def test_bash_and_the_parser_accept_the_result(wait):
    text, _ = fixed(script(rollout=f"MASTER_PORT=1 {DP2} &", wait=wait))
    assert "until curl" in text
    root = Syntax().tree(text.encode())
    assert root is not None
    assert not root.has_error
    # -n reads the script and runs nothing of it.
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch")
def test_diff_can_be_applied(tmp_path):
    path = tmp_path / "x.sh"
    text = script(rollout=f"MASTER_PORT=1 {DP2} &", wait="sleep 60")
    path.write_text(text)
    (result,), _ = fix([(str(path), text)])
    subprocess.run(["patch", "-s", str(path)], input=result.diff, text=True, check=True)
    assert path.read_text() == result.text
    assert not any(f.severity is Severity.HAZARD for f in audit(path.read_text()))


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch")
@pytest.mark.parametrize("name", ["x.sh", "jobs/x.sh", "my jobs/x.sh", "jobs/../x.sh"])
@pytest.mark.parametrize("absolute", [False, True])
def test_printed_diff_can_be_applied_where_it_was_printed(tmp_path, monkeypatch, name, absolute):
    monkeypatch.chdir(tmp_path)
    for folder in ("jobs", "my jobs"):
        (tmp_path / folder).mkdir()
    Path(name).write_text(script(rollout=f"{DP2} &"))
    printed = CliRunner().invoke(app, ["audit", str(tmp_path / name) if absolute else name, "--fix"]).stdout
    subprocess.run(["patch", "-s", "-p0"], input=printed, text=True, check=True)
    assert "--external_plugins independent_ranks.py" in Path(name).read_text()


@pytest.mark.skipif(shutil.which("patch") is None, reason="no patch")
def test_diff_of_a_script_elsewhere_can_be_applied_from_the_root(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "x.sh"
    path.write_text(script(rollout=f"{DP2} &"))
    printed = CliRunner().invoke(app, ["audit", "../x.sh", "--fix"]).stdout
    here = subprocess.run(["patch", "-s", "-p0", "-f"], input=printed, text=True, capture_output=True)
    assert here.returncode == 1
    subprocess.run(["patch", "-s", "-p0", "-d", "/"], input=printed, text=True, check=True)
    assert "--external_plugins independent_ranks.py" in path.read_text()
