"""What pasting takes from a script, and what is given back."""

from __future__ import annotations

import pytest
from audits import audit, by_id, job

from lockstep.audit.shell.paste import repair


def text_of(lines: str) -> list[str]:
    return [row.text for row in repair(lines.split("\n")).rows]


def test_whole_script_comes_back_as_it_is():
    lines = ["#!/bin/bash", "X=1", "swift rollout \\", "  --a 1 \\", "  --b 2 &", "wait"]
    repaired = repair(lines)
    assert [row.text for row in repaired.rows] == lines
    assert not repaired.pasted


def test_flags_join_the_command_and_assignments_stand_before_it():
    assert text_of("A=1\nB='2 3'\nswift rollout\n--a 1\n--b 2 &\nsleep 9") == [
        "A=1 \\",
        "B='2 3' \\",
        "swift rollout \\",
        "--a 1 \\",
        "--b 2 &",
        "sleep 9",
    ]


def test_blank_lines_between_all_lines():
    process = job("A=1\n\nB=2\n\nswift rollout\n\n--a 1\n\n--b 2 &\n\necho done").processes[0]
    assert set(process.command.env) == {"A", "B"}
    assert set(process.options) == {"a", "b"}
    assert process.command.background


def test_variable_that_the_command_uses_stays_a_statement():
    repaired = repair(["GPUS=6,7", "MODEL=/m", "CUDA_VISIBLE_DEVICES=6", "swift rollout", "--model $MODEL"])
    assert [row.text for row in repaired.rows] == [
        "MODEL=/m",
        "GPUS=6,7 \\",
        "CUDA_VISIBLE_DEVICES=6 \\",
        "swift rollout \\",
        "--model $MODEL",
    ]
    assert [row.line for row in repaired.rows] == [2, 1, 3, 4, 5]


def test_comment_between_lost_lines_goes_before_the_command():
    process = job("swift rollout\n--a 1\n# the second\n--b 2").processes[0]
    assert set(process.options) == {"a", "b"}
    assert process.at("b").line == 4


@pytest.mark.parametrize(
    "sentence",
    [
        "第一步：启动",
        "Start the server, don't wait:",
        "--- 端口 ---",
        "8 * 80GiB 全参",
        "```bash",
        "然后运行 (重要",
    ],
)
def test_sentences_become_comments(sentence):
    repaired = repair([sentence, "swift rollout", "--a 1"])
    assert repaired.rows[0].text == f"# {sentence}"
    assert repaired.sentences == [1]
    process = job(f"{sentence}\nswift rollout\n--a 1").processes[0]
    assert process.option("a").text == "1"


@pytest.mark.parametrize(
    "line",
    [
        "echo 你好",
        "export NAME=模型",
        "run_训练() { true; }",
        "# 注释",
        "NAME=值",
        "./脚本.sh",
        "swift rollout --name 模型",
    ],
)
def test_commands_with_chinese_stay_commands(line):
    repaired = repair([line, "", "swift rlhf", "--a 1"])
    assert repaired.rows[0].text == line


def test_flags_after_a_finished_command_are_not_joined():
    repaired = repair(["swift rollout &", "--a 1", "swift rlhf", "--b 2"])
    assert repaired.rows[1].text == "# --a 1"


def test_heredoc_and_quotes_are_left_alone():
    lines = [
        "cat <<EOF",
        "--flag in text",
        "Some Words",
        "EOF",
        "python -c '",
        "--x",
        "'",
        "swift rollout",
        "--a 1",
    ]
    assert [row.text for row in repair(lines).rows] == [*lines[:-2], "swift rollout \\", "--a 1"]


def test_said_in_a_note():
    assert by_id(audit("swift rollout\n--model m"))["pasted"].place.line == 1
    assert "pasted" not in by_id(audit("swift rollout --model m"))
