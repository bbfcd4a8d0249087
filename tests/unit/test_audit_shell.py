"""Forms of shell in which people start such jobs: what the audit reads from each."""

from __future__ import annotations

import pytest
from audits import job, read

from lockstep.audit import from_texts
from lockstep.audit.devices import devices, ranks_here, world_size


def only(text: str):
    (process,) = job(text).processes
    return process


def options(text: str) -> dict[str, str]:
    process = only(text)
    return {name: process.option(name).text for name in process.options}


@pytest.mark.parametrize(
    ("text", "program", "side"),
    [
        ("swift rollout --model m", "swift rollout", "rollout"),
        ("/opt/venv/bin/swift rlhf --model m", "swift rlhf", "trainer"),
        ("nohup swift rollout --model m > log 2>&1 &", "swift rollout", "rollout"),
        ("A=1 env B=2 timeout 10h swift rollout --model m", "swift rollout", "rollout"),
        ("srun --nodes=1 --gpus=8 swift rlhf --model m", "swift rlhf", "trainer"),
        ("srun --nodes=1 bash -c 'swift rlhf --model m'", "swift rlhf", "trainer"),
        (
            "docker run --gpus all -v /a:/b img:1 bash -lc 'cd /x && swift rollout --model m'",
            "swift rollout",
            "rollout",
        ),
        ("docker run --gpus all img swift rollout --model m", "swift rollout", "rollout"),
        ('ssh host2 "cd /x; swift rollout --model m"', "swift rollout", "rollout"),
        ("tmux new-session -d -s r 'swift rollout --model m'", "swift rollout", "rollout"),
        ("bash <<EOF\nswift rollout --model m\nEOF", "swift rollout", "rollout"),
        ('eval "swift rollout --model m"', "swift rollout", "rollout"),
        ("CMD='swift rollout --model m'\n$CMD", "swift rollout", "rollout"),
        ("CMD='swift rollout --model m'\neval \"$CMD\"", "swift rollout", "rollout"),
        ("f() { swift rollout --model $1; }\nf m", "swift rollout", "rollout"),
        ("if true; then swift rollout --model m; fi", "swift rollout", "rollout"),
        ("(cd /x && swift rollout --model m) &", "swift rollout", "rollout"),
        ("swift rollout --model m 2>&1 | tee log", "swift rollout", "rollout"),
        ("python -m swift.cli.main rollout --model m", "swift rollout", "rollout"),
        ("python /a/swift/cli/rollout.py --model m", "swift/cli/rollout.py", "rollout"),
        ("torchrun --nproc_per_node 4 /a/swift/cli/rlhf.py --model m", "torchrun rlhf", "trainer"),
        (
            "python -m torch.distributed.run --nproc-per-node=4 swift/cli/rlhf.py --model m",
            "torch.distributed.run rlhf",
            "trainer",
        ),
        ("accelerate launch --num_processes 4 swift/cli/rlhf.py --model m", "accelerate rlhf", "trainer"),
        ("trl vllm-serve --model m", "trl vllm-serve", "rollout"),
        ("vllm serve m --port 8000 --model m", "vllm serve", "server"),
    ],
)
def test_programs(text, program, side):
    process = only(text)
    assert (process.program, process.side) == (program, side)
    assert process.option("model").text == "m"


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ("", "--a 1 --b-c=2 --d", {"a": "1", "b_c": "2", "d": "true"}),
        ("", "--a x y --a z", {"a": "z"}),
        ("", "--a 'x y' --b \"p q\"", {"a": "x y", "b": "p q"}),
        ("X=1", '--a $X --b ${X}2 --c "$X/$X"', {"a": "1", "b": "12", "c": "1/1"}),
        ("X=1", "--a '$X'", {"a": "$X"}),
        ("", "--a ${X:-5} --b ${Y-6}", {"a": "5", "b": "6"}),
        ("X=1", "--a ${X:-5} --b ${X:+7}", {"a": "1", "b": "7"}),
        ("X=3", "--a $((X + 2 * 4)) --b $((7 / 2))", {"a": "11", "b": "3"}),
        ("X=/a; X+=/b", "--a $X", {"a": "/a/b"}),
        ("ARGS='--a 1 --b 2'", "$ARGS", {"a": "1", "b": "2"}),
        ("ARGS=(--a 1)\nARGS+=(--b '2 3')", '"${ARGS[@]}"', {"a": "1", "b": "2 3"}),
        ("", "--a $(date +%s)", {"a": "$(date +%s)"}),
        ("", "--a `hostname`", {"a": "`hostname`"}),
        ("", "--a -1 --b 1e-6", {"a": "-1", "b": "1e-6"}),
        ("", "\\\n  --a 1 \\\n  --b 2", {"a": "1", "b": "2"}),
        ("A=1; if x; then A=2; else A=2; fi", "--a $A", {"a": "2"}),
        ("if x; then A=2; else A=3; fi", "--a $A", {"a": "2 or 3"}),
    ],
)
def test_words(before, given, expected):
    assert options(f"{before}\nswift rollout {given}") == expected


def test_unknown_values_are_told_apart():
    text = "A=$(port)\nB=$(port)\nswift rollout --a $A --b $A --c $B --d $E --e $E"
    process = only(text)
    a, b, c, d, e = (process.option(name) for name in "abcde")
    assert not a.known
    assert a.same(b)
    assert not a.same(c)
    assert d.same(e)


def test_environment_follows_export_prefix_and_scope():
    text = "A=1\nexport B=2\nC=3 swift rollout --model m &\nexport A\nunset B\nswift rlhf --model m"
    rollout, trainer = job(text).processes
    assert {n: s.value.text for n, s in rollout.command.env.items()} == {"B": "2", "C": "3"}
    assert "A" in rollout.command.shell_only
    assert {n: s.value.text for n, s in trainer.command.env.items()} == {"A": "1"}


def test_allexport_and_subshell():
    text = "set -a\nA=1\nset +a\n(B=2; export B)\nswift rollout --model m"
    assert set(only(text).command.env) == {"A"}


def test_container_has_its_own_environment():
    text = "export A=1\nX=2\ndocker run -e B=3 --env=C=4 img bash -c 'D=5 swift rollout --model m --a $X'"
    process = only(text)
    assert {n: s.value.text for n, s in process.command.env.items()} == {"B": "3", "C": "4", "D": "5"}
    assert process.option("a").text == "$X"
    assert process.command.machine


def test_double_quoted_script_is_filled_in_from_outside():
    process = only('X=2\nbash -c "swift rollout --model m --a $X --b \\$Y --c \\"p q\\""')
    assert {n: process.option(n).text for n in "abc"} == {"a": "2", "b": "$Y", "c": "p q"}


def test_loop_over_words_starts_one_each():
    processes = job(
        "for i in 6 7; do CUDA_VISIBLE_DEVICES=$i swift rollout --port $((8000+i)) & done"
    ).processes
    assert [(p.option("port").text, devices(p).used) for p in processes] == [
        ("8006", ("6",)),
        ("8007", ("7",)),
    ]
    assert all(p.command.background for p in processes)


def test_loop_over_unknown_words_starts_one():
    process = only("for i in $(seq 0 3); do swift rollout --port $i & done")
    assert not process.option("port").known


def test_slurm_script():
    found = job(read("slurm.sbatch"))
    assert [p.program for p in found.processes] == ["swift rollout", "swift rollout", "swift rlhf"]
    trainer = found.processes[2]
    assert world_size(trainer) == 6
    assert trainer.option("model").text == "/models/base"
    assert [w.kind for w in found.waits] == ["check", "check"]


def test_docker_script():
    found = job(read("docker.sh"))
    rollout, trainer = found.processes
    assert found.versions["vllm"] == "0.11.0"
    assert found.versions["ms-swift"] == "3.10.3"
    assert (rollout.at("vllm_data_parallel_size").line, trainer.at("use_vllm").line) == (7, 11)
    assert devices(rollout).visible == ("6", "7")
    assert devices(trainer).visible == ("0", "1", "2", "3")


def test_torchrun_script():
    rollout, trainer = job(read("torchrun.sh")).processes
    assert trainer.launcher is not None
    assert ranks_here(trainer) == 2
    assert trainer.option("vllm_server_port").text == "8000"
    assert trainer.at("num_generations").line == 10
    assert rollout.flag("vllm_use_async_engine") is True


def test_two_scripts_are_one_job():
    found = from_texts([("a.sh", "swift rollout --model m"), ("b.sh", "swift rlhf --model m")])
    assert [p.place.path for p in found.processes] == ["a.sh", "b.sh"]


def test_hidden_options_are_not_taken_for_defaults():
    assert only("swift rollout --model m $EXTRA").number("vllm_data_parallel_size", 1) is None
    assert only('swift rollout --model m "$@"').hidden == ("$@",)
    assert only('swift rollout --model m --name a "$NAME"').hidden == ()
    assert only("swift rollout --config a.yaml").number("vllm_data_parallel_size", 1) is None
    assert only("swift rollout --model m").number("vllm_data_parallel_size", 1) == 1


def test_versions_from_pip_lines():
    found = job(
        "pip install 'vllm==0.11.0' ms_swift==3.10.3 torch>=2.0\npython -m pip install trl==0.24.0\nswift "
        "rollout --model m"
    )
    assert found.versions == {"vllm": "0.11.0", "ms-swift": "3.10.3", "trl": "0.24.0"}
