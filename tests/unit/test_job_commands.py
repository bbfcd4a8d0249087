"""The CPU job's command lines against the incident's script, argument by argument."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch_script import LOCAL, flags, same, script

from lockstep import remedies
from lockstep.stacks.swift.commands import Command, Ports, rollout_command, trainer_command
from lockstep.stacks.swift.inside import faults
from lockstep.stacks.swift.spec import CPU_SIZES, JobSpec, Layout, cpu_job

PORTS = Ports(
    http=10001, rendezvous=10002, weight_sync=10003, rollout=10004, ras_rollout=10005, ras_trainer=10006
)
RUN = Path("/runs/one")


def job() -> JobSpec:
    return cpu_job("job", model=Path("/models/tiny"), datasets=Path("/data/shapes"))


def rollout(spec: JobSpec | None = None, base: dict[str, str] | None = None) -> Command:
    return rollout_command(spec or job(), PORTS, RUN, base or {})


def trainer(spec: JobSpec | None = None, base: dict[str, str] | None = None) -> Command:
    return trainer_command(spec or job(), PORTS, RUN, base or {})


def test_every_argument_of_the_script_is_carried_or_said_to_be_replaced() -> None:
    spec = job()
    for command, argv in (("rollout", rollout().argv), ("rlhf", trainer().argv)):
        ours, theirs = flags(argv[2:]), script(command)[1]
        assert theirs, "the script was not understood"
        assert set(theirs) <= set(ours)
        for name, value in theirs.items():
            if name in LOCAL:
                continue
            if name in spec.instead or name in CPU_SIZES:
                assert not same(ours[name], value), f"--{name} is said to be replaced, and is not"
            else:
                assert same(ours[name], value), f"--{name}"


def test_what_the_script_does_not_have_is_needed_on_a_cpu() -> None:
    added = set(flags(trainer().argv[2:])) - set(script("rlhf")[1])
    assert added == {"add_version", "max_steps", "ddp_backend"}
    added = set(flags(rollout().argv[2:])) - set(script("rollout")[1])
    assert added == {"external_plugins", "vllm_max_model_len", "vllm_enforce_eager", "vllm_engine_kwargs"}


def test_every_variable_of_the_script_is_set_or_said_to_be_replaced() -> None:
    for command, env in (("rollout", rollout().env), ("rlhf", trainer().env)):
        theirs = script(command)[0]
        assert {"IMAGE_MAX_TOKEN_NUM", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"} <= set(theirs)
        assert set(theirs) <= set(env) | set(job().instead)
        assert env["IMAGE_MAX_TOKEN_NUM"] == theirs["IMAGE_MAX_TOKEN_NUM"]
    assert set(job().instead) <= set(script("rlhf")[0]) | set(script("rlhf")[1])


def test_ports_paths_and_ranks_meet() -> None:
    server, client = flags(rollout().argv[2:]), flags(trainer().argv[2:])
    assert server["port"] == client["vllm_server_port"] == "10001"
    assert server["host"] == client["vllm_server_host"]
    assert trainer().env["MASTER_PORT"] == "10002"
    assert trainer().env["LOCKSTEP_WEIGHT_SYNC_PORT"] == "10003"
    assert rollout().env["MASTER_PORT"] == "10004"
    assert trainer().env["NPROC_PER_NODE"] == "2"
    assert server["model"] == client["model"] == "/models/tiny"
    assert client["dataset"] == "/data/shapes/train.jsonl"
    assert client["val_dataset"].startswith("/data/shapes/val.jsonl")
    assert client["output_dir"] == "/runs/one/output"
    for env in (rollout().env, trainer().env):
        assert env["LOCKSTEP_RUN_DIR"] == "/runs/one"
        assert env["ROOT_IMAGE_DIR"] == "/data/shapes"
        assert env["CUDA_VISIBLE_DEVICES"] == ""


def test_on_gpus_each_side_sees_its_own() -> None:
    spec = job().with_(device="cuda", layout=Layout(trainer=(0, 1, 2, 3, 4, 5), rollout=(6, 7)))
    for command, side in ((rollout(spec), "rollout"), (trainer(spec), "rlhf")):
        theirs = script(side)[0]
        assert command.env["CUDA_VISIBLE_DEVICES"] == theirs["CUDA_VISIBLE_DEVICES"]
        assert command.env.get("NPROC_PER_NODE") == theirs.get("NPROC_PER_NODE")
        assert "LOCKSTEP_CPU" not in command.env
        # One host: every group meets on the loopback interface, and numbers are nvidia-smi's.
        assert command.env["GLOO_SOCKET_IFNAME"] == command.env["NCCL_SOCKET_IFNAME"] == "lo"
        assert command.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert flags(rollout(spec).argv[2:])["vllm_data_parallel_size"] == "2"
    two = spec.with_(layout=Layout(trainer=(0,), rollout=(4, 5, 6, 7), tensor_parallel=2))
    assert flags(rollout(two).argv[2:])["vllm_data_parallel_size"] == "2"
    assert flags(rollout(two).argv[2:])["vllm_tensor_parallel_size"] == "2"


def test_nothing_of_the_callers_job_reaches_this_one() -> None:
    foreign = {
        "RANK": "3", "WORLD_SIZE": "8", "NODE_RANK": "1", "NNODES": "2", "MASTER_ADDR": "10.0.0.1",
        "VLLM_DP_RANK": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCH_NCCL_BLOCKING_WAIT": "1",
        "NCCL_BLOCKING_WAIT": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "CUDA_LAUNCH_BLOCKING": "1",
        "TORCH_FR_BUFFER_SIZE": "0",
        "VLLM_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "LOCKSTEP_FAULT": "{}", "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    kept = {"PATH": "/bin", "http_proxy": "http://proxy:3128", "no_proxy": "internal"}
    for command in (rollout(base=foreign | kept), trainer(base=foreign | kept)):
        assert {name for name in foreign if command.env.get(name) == foreign[name]} == set()
        assert command.env["PATH"] == "/bin"
        for name in ("no_proxy", "NO_PROXY"):
            assert command.env[name] == "127.0.0.1,localhost,internal"
        assert command.env["HF_HUB_OFFLINE"] == command.env["VLLM_NO_USAGE_STATS"] == "1"


def test_fault_and_remedy_reach_both_sides_as_they_should() -> None:
    fault = {"name": "late rank", "rank": 1, "generation": 2, "seconds": 4.5}
    spec = job().with_(fault=fault, remedy="independent ranks")
    assert json.loads(rollout(spec).env[faults.FAULT]) == fault
    plain, cured = flags(rollout().argv[2:]), flags(rollout(spec).argv[2:])
    cure = str(remedies.plugin("independent ranks"))
    assert cured["external_plugins"].split() == [cure, *plain["external_plugins"].split()]
    assert {name for name in cured if cured[name] != plain[name]} == {"external_plugins"}
    assert faults.FAULT not in rollout().env
    assert faults.FAULT not in trainer().env
    with pytest.raises(KeyError):
        rollout(job().with_(remedy="prayer"))


def test_reward_and_resume() -> None:
    assert "resume_from_checkpoint" not in flags(trainer().argv[2:])
    spec = job().with_(resume_from=Path("/old/checkpoint-4"), reward=Path("/my/reward.py"))
    ours = flags(trainer(spec).argv[2:])
    assert ours["resume_from_checkpoint"] == "/old/checkpoint-4"
    assert ours["external_plugins"].split()[0] == "/my/reward.py"
    assert "/my/reward.py" not in rollout(spec).argv


def test_two_servers_share_the_devices_and_nothing_else() -> None:
    spec = job().with_(servers=2)
    ports = Ports.of(range(10001, 10001 + Ports.needed(2)))
    first = rollout_command(spec, ports, RUN, {})
    second = rollout_command(spec, ports.of_server(1), RUN, {}, server=1)
    for command in (first, second):
        assert flags(command.argv[2:])["vllm_data_parallel_size"] == "1"
    assert [flags(command.argv[2:])["port"] for command in (first, second)] == ["10001", "10007"]
    assert "LOCKSTEP_ROLLOUT_SERVER" not in first.env
    assert (second.env["LOCKSTEP_ROLLOUT_SERVER"], second.env["LOCKSTEP_ROLLOUT_FIRST"]) == ("1", "1")
    trainer = trainer_command(spec, ports, RUN, {})
    assert flags(trainer.argv[2:])["vllm_server_host"].split() == ["127.0.0.1", "127.0.0.1"]
    assert flags(trainer.argv[2:])["vllm_server_port"].split() == ["10001", "10007"]
    assert trainer.env["LOCKSTEP_WEIGHT_SYNC_PORT"] == "10003,10008"
    assert len(set(ports.all())) == Ports.needed(2)


def test_variables_of_the_rollout_do_not_reach_the_trainer() -> None:
    spec = job().with_(rollout_env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    assert rollout_command(spec, PORTS, RUN, {}).env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in trainer_command(spec, PORTS, RUN, {}).env
