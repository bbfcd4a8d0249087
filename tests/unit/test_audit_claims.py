"""What an audit may claim: options that a release has, programs that were read, nodes that somebody starts."""

# ruff: noqa: E501

from __future__ import annotations

import json

import pytest
from audits import SCRIPTS, TRAINER, audit, by_id, job, script
from typer.testing import CliRunner

from lockstep.audit import Severity, findings, from_texts
from lockstep.audit.known_options import KNOWN, RENAMED
from lockstep.audit.output import to_json
from lockstep.cli import app

H, W, N, OK = Severity.HAZARD, Severity.WARNING, Severity.NOTE, Severity.OK
SWIFT = {"ms-swift": "3.10.3", "vllm": "0.11.0"}


@pytest.mark.parametrize(
    ("name", "code", "first", "not_said"),
    [
        ("older_option_name.sh", 1, "1 hazard: synchronous engine with data parallel size 2", "no data-parallel group"),
        ("node_nobody_starts.sh", 1, "1 hazard: NNODES is 2, and no command here starts node rank 1", "no hazard"),
        ("trainer_not_read.sh", 0, "no hazard found in what was read, but accelerate launch my_grpo.py was not read", "from outside"),
        ("python_module.sh", 1, "1 hazard: 1 rank on 4 GPUs", "Make NPROC_PER_NODE equal"),
        ("trl_online.sh", 0, "no hazard found in what was read, but torchrun my_grpo.py was not read", "wave race"),
    ],
)  # fmt: skip
def test_the_first_line_claims_no_more_than_was_read(name, code, first, not_said):
    result = CliRunner().invoke(app, ["audit", str(SCRIPTS / name)])
    assert (result.exit_code, result.stdout.startswith(first)) == (code, True), result.stdout
    assert not_said not in result.stdout


def test_a_fixed_sleep_before_a_trainer_that_is_not_read_is_seen():
    found = by_id(findings(from_texts([("x.sh", (SCRIPTS / "trainer_not_read.sh").read_text())])))
    assert found["sleep-instead-of-health-check"].place.line == 4


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deepspeed --num_gpus 8 finetune.py --x 1", "deepspeed finetune.py"),
        ("python -m verl.trainer.main_ppo a=b", "python -m verl.trainer.main_ppo"),
        ("python train.py", "python train.py"),
        ("torchrun --nproc_per_node 2 -m mine.train", "torchrun -m mine.train"),
        ("python -m torch.distributed.run --nproc_per_node 2 t.py", "python t.py"),
        ("python -m pip install x", None),
        ("python -c 'print(1)'", None),
        ("accelerate config", None),
        ("echo train.py", None),
    ],
)
def test_a_program_that_is_not_read_is_named(line, said):
    found = by_id(audit(f"{script()}{line}\n"))
    assert (
        (f"{said} was not read" == found["program-not-read"].title)
        if said
        else "program-not-read" not in found
    )


SERVER = "CUDA_VISIBLE_DEVICES=6,7 swift rollout --model m --port 8001"


@pytest.mark.parametrize(
    ("options", "releases", "id_", "severity", "words"),
    [
        ("--vllm_data_paralel_size 2", SWIFT, "option-unknown", H, "no option --vllm_data_paralel_size"),
        ("--vllm_data_paralel_size 2", {}, "options-unknown", N, "--vllm_data_paralel_size"),
        ("--data_parallel_size 2", SWIFT, "option-unknown", H, "It is --vllm_data_parallel_size there"),
        ("--data-parallel-size 2", {"ms-swift": "4.1.0"}, "option-unknown", H, "It is --vllm_data_parallel_size"),
        ("--vllm_data_parallel_size 2 --use_async_engine true", {}, "option-unknown", H, "that has --vllm_data_parallel_size"),
        ("--data_parallel_size 2", {}, "option-renamed", W, "3.7.0"),
        ("--data_parallel_size 2", {"ms-swift": "3.6.4"}, "offline-wave-race", H, "data parallel size 2"),
        ("--vllm_data_parallel_size 2", {"ms-swift": "3.6.4"}, "option-unknown", H, "--data_parallel_size before"),
        ("--data_parallel_size 2 --use_async_engine true", {"ms-swift": "3.6.4"}, "engine", OK, "asynchronous"),
    ],
)  # fmt: skip
def test_the_release_decides_which_options_there_are(options, releases, id_, severity, words):
    finding = by_id(audit(script(rollout=f"{SERVER} {options} &"), releases))[id_]
    assert finding.severity is severity
    assert words in finding.title + finding.reason


@pytest.mark.parametrize(
    ("options", "releases"),
    [
        ("--vllm_tensor_parallel_size 2", SWIFT),
        ("--vllm-tensor-parallel-size 2", SWIFT),
        ("--vllm_tensor_par 2", SWIFT),  # argparse takes what only one name begins with
        ("--no_load_args", SWIFT),
        ("--new_in_five true", {"ms-swift": "5.0.0"}),
    ],
)
def test_an_option_that_there_is_or_may_be_is_not_called_unknown(options, releases):
    assert (
        not {"option-unknown", "options-unknown"}
        & by_id(audit(script(rollout=f"{SERVER} {options} &"), releases)).keys()
    )


def test_a_server_that_refuses_to_start_is_not_said_to_race():
    found = by_id(audit(script(rollout=f"{SERVER} --data_parallel_size 2 &"), SWIFT))
    assert not {"offline-wave-race", "engine"} & found.keys()


def test_the_older_names_are_no_names_of_the_tables_release():
    assert not RENAMED & KNOWN["rollout"]
    assert {f"vllm_{name}" for name in RENAMED} <= KNOWN["rollout"]


@pytest.mark.parametrize(
    ("release", "fires"),
    [("0.24.0", True), ("1.10.9", True), ("1.11.0", False), ("1.16.0", False), (None, True)],
)
def test_trl_serves_online_from_1_11_on(release, fires):
    rollout = "trl vllm-serve --model m --data_parallel_size 2 &"
    found = by_id(audit(rollout, {"trl": release} if release else {}))
    assert ("offline-wave-race" in found) == fires
    assert fires or "coordinator" in found["engine"].title


def test_the_data_parallel_ranks_of_this_host_need_its_gpus():
    text = "CUDA_VISIBLE_DEVICES=0,1 vllm serve m --data-parallel-size 4 --data-parallel-size-local 2"
    (process,) = to_json(job(text), audit(text))["processes"]
    assert (process["data_parallel_size"], process["data_parallel_size_local"]) == (4, 2)
    assert process["gpus"]["used"] == ["0", "1"]
    trl = (
        "CUDA_VISIBLE_DEVICES=0,1 trl vllm-serve --model m --data-parallel-size 4 --data-parallel-size-local"
    )
    releases = {"trl": "1.12.0"}
    assert by_id(audit(f"{trl} 2", releases))["server-gpus"].severity is OK
    assert by_id(audit(f"{trl} 4", releases))["server-gpus-missing"].severity is H


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT"])
@pytest.mark.parametrize(
    ("before", "value", "outside"),
    [
        ("", "$X", True),
        ("", "$1", True),
        ("X=$(hostname -i)", "$X", False),
        ("X=$((29500 + RANDOM % 100))", "$X", False),
        ("", "$(hostname)", False),
        ("read X", "$X", False),
        ("X=h", "$X", False),
        ("if a; then X=$(b); else X=c; fi", "$X", False),
    ],
)
def test_what_the_script_assigns_does_not_come_from_outside(name, before, value, outside):
    found = by_id(audit(f"{before}\n{script(trainer=f'{name}={value} {TRAINER}')}"))
    assert (f"{name.lower().replace('_', '-')}-from-outside" in found) == outside


def node(
    rank: str = "", address: str = "MASTER_ADDR=10.0.0.1", count: str = "NNODES=2", more: str = ""
) -> str:
    return f"{count} {rank} {address} NPROC_PER_NODE=8 swift sft --model m --dataset d {more}\n"


def torchrun(rank: int, address: str = "10.0.0.1") -> str:
    return (
        f"torchrun --nnodes 2 --node_rank {rank} --master_addr {address} --nproc_per_node 8 "
        "swift/cli/sft.py --model m\n"
    )


R0, R1 = "NODE_RANK=0", "NODE_RANK=1"


@pytest.mark.parametrize(
    ("scripts", "id_", "severity"),
    [
        ([node(R0, "")], "node-missing", H),
        ([node(R0)], "node-missing", W),
        ([node("", "")], "node-missing", H),
        ([node(R0, count="NNODES=3"), node(R1, count="NNODES=3")], "node-missing", H),
        ([node(R0), node(R0)], "node-rank-twice", H),
        ([node(), node()], "node-rank-twice", H),
        ([node(R0), node("NODE_RANK=2")], "node-rank-beyond", H),
        ([node(R0), node(R1, "MASTER_ADDR=10.0.0.2")], "master-addr-differs", H),
        ([node(R0), node(R1, "")], "master-addr-differs", H),
        (
            [node(R0), node(R1, more="").replace("MASTER_ADDR", "MASTER_PORT=1 MASTER_ADDR")],
            "master-port-differs",
            H,
        ),
        ([node(R0), node(R1, count="NNODES=3")], "nnodes-differ", H),
        ([torchrun(0), torchrun(1, "10.0.0.2")], "master-addr-differs", H),
        ([torchrun(0), torchrun(0)], "node-rank-twice", H),
        ([f"ssh a '{node(R0)}' &\nssh b '{node(R0)}'\n"], "node-rank-twice", H),
    ],
)
def test_nodes_that_do_not_make_one_job(scripts, id_, severity):
    found = by_id(findings(from_texts([(f"{i}.sh", text) for i, text in enumerate(scripts)])))
    assert found[id_].severity is severity


NODES = {
    "node-missing",
    "node-rank-twice",
    "node-rank-beyond",
    "nnodes-differ",
    "master-addr-differs",
    "master-port-differs",
}


@pytest.mark.parametrize(
    "scripts",
    [
        [node(R0), node(R1)],
        [torchrun(0), torchrun(1)],
        [node("NODE_RANK=$SLURM_NODEID")],
        [node("NODE_RANK=$1", "MASTER_ADDR=$2")],
        [node("NODE_RANK=${1:-0}", "MASTER_ADDR=${2:-127.0.0.1}")],
        ["export NODE_RANK=${NODE_RANK:-0}\n" + node("", "")],
        [node(R0), node(R1, "MASTER_ADDR=${A:-10.0.0.2}")],
        [node(R0, "", "NNODES=1")],
        [node(R0, "", "NNODES=$N")],
        ["NPROC_PER_NODE=8 swift sft --model m\n"],
        [f"srun {node('', 'MASTER_ADDR=a')}"],
        [node(R0) + node(R0), node(R1) + node(R1)],  # two stages, one after the other
        [f"for i in 0 1; do ssh h$i '{node('NODE_RANK=$i')}' & done\n"],
        ["NNODES=2 python -m swift.cli.sft --model m\n"],
        [
            "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint h:1 --nproc_per_node 8 swift/cli/sft.py --model m\n"
        ],
    ],
)
def test_nodes_of_which_nothing_wrong_can_be_said(scripts):
    found = by_id(findings(from_texts([(f"{i}.sh", text) for i, text in enumerate(scripts)])))
    assert not NODES & found.keys()


def test_one_rank_because_python_starts_no_torchrun_is_said_so():
    text = (SCRIPTS / "python_module.sh").read_text()
    finding = by_id(audit(text))["ranks-below-gpus"]
    assert "no torchrun (NPROC_PER_NODE is not read)" in finding.reason
    assert "swift rlhf" in finding.advice
    (sheet,) = to_json(job(text), [])["processes"]
    assert sheet["world_size"] == 1
    json.dumps(sheet)


@pytest.mark.parametrize(
    ("before", "after", "overlap"),
    [
        ("", "CUDA_VISIBLE_DEVICES=6 accelerate launch t.py --vllm_mode server", True),
        ("", "CUDA_VISIBLE_DEVICES=4,5 accelerate launch t.py --vllm_mode server", False),
        ("CUDA_VISIBLE_DEVICES=6 python prepare.py\n", "", False),
        ("CUDA_VISIBLE_DEVICES=6 python serve.py &\n", "", True),
        ("python prepare.py &\n", "", False),
    ],
)
def test_the_gpus_of_a_program_that_is_not_read_count(before, after, overlap):
    text = f"{before}CUDA_VISIBLE_DEVICES=6,7 trl vllm-serve --model m --tensor_parallel_size 2 &\n{after}\n"
    assert ("gpu-overlap" in by_id(audit(text))) == overlap


@pytest.mark.parametrize(
    ("scripts", "id_"),
    [
        (["accelerate launch --num_machines 2 --machine_rank 0 t.py"], "node-missing"),
        (
            ["torchrun --nnodes=2 --node-rank=0 t.py", "torchrun --nnodes=2 --node-rank=0 t.py"],
            "node-rank-twice",
        ),
        (["python -m torch.distributed.run --nnodes 2 --node_rank 3 t.py"], "node-rank-beyond"),
        (["NNODES=2 python t.py"], None),
        (["torchrun --nnodes 1:4 --rdzv_backend c10d t.py"], None),
    ],
)
def test_the_nodes_of_a_program_that_is_not_read_count(scripts, id_):
    texts = [(f"{i}.sh", f"{script() if not i else ''}{text}\n") for i, text in enumerate(scripts)]
    found = NODES & by_id(findings(from_texts(texts))).keys()
    assert id_ in found if id_ else not found


@pytest.mark.parametrize(
    "line", ["./train.sh", "/a/b/run.sh 0", "bash train.sh", "nohup ./train.sh &", "srun train.sh"]
)
def test_a_script_that_is_run_is_named_in_the_conclusion(line, tmp_path):
    (tmp_path / "x.sh").write_text(f"{script()}{line}\n")
    result = CliRunner().invoke(app, ["audit", str(tmp_path / "x.sh")])
    assert result.exit_code == 0
    assert "no hazard found in what was read, but " in result.stdout.splitlines()[0]
