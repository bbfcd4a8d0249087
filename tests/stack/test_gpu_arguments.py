"""The pinned ms-swift reads both command lines of the GPU job, with its own argument classes, on a machine
that pretends to have the GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lockstep.run.ports import free_ports
from lockstep.stacks.swift.commands import Ports, rollout_command, trainer_command
from lockstep.stacks.swift.gpu import gpu_job
from lockstep.stacks.swift.spec import JobSpec, Layout

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"external_plugins", "vllm_engine_kwargs", "deepspeed"}
"""Arguments that ms-swift turns into something else."""
PORTS = Ports(20001, 20002, 20003, 20004, 20005, 20006)

READ = """
import json, os, sys
from lockstep.stacks.swift.inside import cpu
from transformers.hf_argparser import HfArgumentParser
from swift.llm import RLHFArguments, RolloutArguments
from swift.llm.argument import deploy_args, train_args
from swift.utils import parse_args

job = json.load(sys.stdin)
deploy_args.get_device_count = lambda: len(job["rollout_gpus"])
train_args.get_device_count = lambda: 1
cpu.apply_trainer()
RLHFArguments._init_external_vllm = lambda self: None  # it connects to the server

def plain(value):
    known = isinstance(value, (str, int, float, bool, type(None), list, dict))
    return value if known else str(value).removeprefix("torch.")

def read(kind, argv):
    args, rest = parse_args(kind, argv)
    assert rest == [], f"not understood: {rest}"
    return {name: plain(getattr(args, name, "missing")) for name in job["names"]} | {"engine": plain(
        getattr(args, "vllm_engine_kwargs", None))}

print("\\nread: " + json.dumps([read(RolloutArguments, job["rollout"]), read(RLHFArguments, job["trainer"])]))
"""


def flags(argv: list[str]) -> dict[str, str]:
    """Arguments with one value each."""
    pairs = zip(argv, [*argv[1:], "--"], strict=True)
    return {name[2:]: value for name, value in pairs if name.startswith("--") and not value.startswith("--")}


def read(spec: JobSpec, run_dir: Path) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """What the argument classes hold after reading the rollout's line and the trainer's, and both lines."""
    commands = [rollout_command(spec, PORTS, run_dir, {}), trainer_command(spec, PORTS, run_dir, {})]
    lines = [command.argv[2:] for command in commands]
    job = {
        "rollout": lines[0],
        "trainer": lines[1],
        "rollout_gpus": spec.layout.rollout,
        "names": sorted({*flags(lines[0]), *flags(lines[1])}),
    }
    quiet = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    env = quiet | {
        "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1",
        "MODELSCOPE_CACHE": str(run_dir),
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1, "127.0.0.1")[0]),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:  # ms-swift makes `result/` where it is
        done = subprocess.run(
            [sys.executable, "-c", READ],
            input=json.dumps(job),
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = next(line for line in done.stdout.splitlines() if line.startswith("read: "))
    return json.loads(found[6:]), lines


@pytest.mark.lockstep_slow
def test_both_lines_are_read_as_they_are_meant(model: Path, tmp_path: Path) -> None:
    spec = gpu_job(
        "job",
        model=model,
        datasets=ROOT / "datasets" / "shapes",
        layout=Layout(trainer=(0, 1, 2, 3, 4, 5), rollout=(6, 7)),
        flash_attn=True,
    )
    (rollout, trainer), lines = read(spec, tmp_path)
    for held, line in ((rollout, lines[0]), (trainer, lines[1])):
        for name, value in flags(line).items():
            if name not in ELSEWHERE:
                assert _same(held[name], value), f"--{name} {value} is read as {held[name]!r}"
    assert rollout["vllm_data_parallel_size"] == 2
    assert json.loads(json.dumps(rollout["engine"])) == {"num_gpu_blocks_override": 8192}
    assert trainer["padding_free"] is True
    assert trainer["deepspeed"]["zero_optimization"]["stage"] == 3


def _same(held: Any, told: str) -> bool:
    if isinstance(held, bool):
        return told == str(held).lower()
    if isinstance(held, list):
        return len(held) == 1 and _same(held[0], told)
    try:
        return float(held) == float(told)
    except (TypeError, ValueError):
        return str(held) == told


@pytest.mark.lockstep_slow
def test_the_line_of_two_engines_on_one_gpu_is_read_as_it_is_meant(model: Path, tmp_path: Path) -> None:
    spec = gpu_job(
        "job",
        model=model,
        datasets=ROOT / "datasets" / "shapes",
        layout=Layout(trainer=(0,), rollout=(0, 0)),
        flash_attn=False,
    )
    (rollout, trainer), _ = read(spec, tmp_path)
    assert rollout["vllm_data_parallel_size"] == 2
    assert rollout["vllm_gpu_memory_utilization"] == 0.3
    assert trainer["vllm_server_timeout"] == 600
