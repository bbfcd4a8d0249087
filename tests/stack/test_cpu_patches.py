"""What the CPU patches put into the pinned packages: each target is there, each patch does what it says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
pytest.importorskip("trl")

import ranks  # noqa: E402

from lockstep.env import CPU  # noqa: E402
from lockstep.inside.recorder import Probe  # noqa: E402
from lockstep.stacks.swift.inside import cpu  # noqa: E402
from lockstep.stacks.swift.inside.weight_sync import count_weight_sync  # noqa: E402

ROLLOUT = """
from types import SimpleNamespace
from swift.llm.argument import deploy_args
from vllm.engine.arg_utils import EngineArgs
from trl.scripts import vllm_serve
before = [deploy_args.get_device_count(), vllm_serve.PyNcclCommunicator.__name__]
EngineArgs._set_default_args = lambda self, context, config: setattr(self, "enable_chunked_prefill", True)
cpu.apply_rollout()
cpu.apply_rollout()
args = SimpleNamespace(enable_prefix_caching=True)
EngineArgs._set_default_args(args, None, None)
result = {
    "devices": [before[0], deploy_args.get_device_count()],
    "communicator": [before[1], vllm_serve.PyNcclCommunicator.__name__],
    "prefill": [args.enable_chunked_prefill, args.enable_prefix_caching],
}
"""
TRAINER = """
import importlib
import torch, transformers
import deepspeed
comm = importlib.import_module("deepspeed.comm.torch")  # as an attribute this name is torch itself
from transformers import training_args
before = [training_args.is_torch_bf16_gpu_available(), hasattr(torch.cpu, "max_memory_reserved")]
waited = []

class Work:
    def wait(self):
        waited.append(1)

deepspeed.comm.all_gather_into_tensor = lambda *args, work=Work(), **kwargs: work
cpu.apply_trainer()
cpu.apply_trainer()
made = deepspeed.comm.all_gather_into_tensor("out", "in", async_op=True)
sync = deepspeed.comm.all_gather_into_tensor("out", "in", work=None)
result = {
    "bf16": [before[0], training_args.is_torch_bf16_gpu_available()],
    "memory": [before[1], torch.cpu.max_memory_reserved(), torch.cpu.max_memory_reserved("cpu")],
    "shm": comm.build_shm_op(),
    "gather": [type(made).__name__, sync, len(waited)],
    "named": training_args.TrainingArguments(output_dir="none", bf16=True).bf16,
}
"""
CLIENT = """
from swift.trainers.rlhf_trainer import vllm_client
before = vllm_client.PyNcclCommunicator.__name__
cpu.apply_client()
result = [before, vllm_client.PyNcclCommunicator.__name__]
"""


def _apply(body: str, devices: str) -> Any:
    code = f"import json\nfrom lockstep.stacks.swift.inside import cpu\n{body}\nprint(json.dumps(result))"
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "LOCKSTEP_RUN_DIR")}
    env |= {
        CPU: devices,
        "DS_ACCELERATOR": "cpu",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_rollouts_patches() -> None:
    pytest.importorskip("swift")
    result = _apply(ROLLOUT, "3")
    assert result["devices"][1] == 3
    assert result["communicator"] == ["PyNcclCommunicator", "GlooCommunicator"]
    assert result["prefill"] == [False, False]


def test_the_trainers_patches() -> None:
    pytest.importorskip("deepspeed")
    result = _apply(TRAINER, "0")
    assert result["bf16"][1] is True
    assert result["named"] is True
    assert result["memory"] == [False, 0, 0]
    assert result["shm"] is None
    assert result["gather"] == ["Work", None, 1]


def test_the_clients_patch() -> None:
    pytest.importorskip("swift")
    assert _apply(CLIENT, "0") == ["PyNcclCommunicator", "GlooCommunicator"]


def test_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3}, raising=False)
    env = cpu.rollout_environment(2, 2)
    assert env[CPU] == "4"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "3|7|3|7"
    assert cpu.trainer_environment()[CPU] == "0"


kept: list[Any] = []


def _sync(probe: Probe, rank: int) -> None:
    from trl.scripts import vllm_serve
    from vllm.distributed.utils import StatelessProcessGroup

    cpu._gloo_weight_sync("trl.scripts.vllm_serve")
    count_weight_sync(probe, "rollout")
    group = StatelessProcessGroup.create(
        host="127.0.0.1", port=int(os.environ["TEST_PORT"]), rank=rank, world_size=3
    )
    communicator = vllm_serve.PyNcclCommunicator(group, device="cpu")
    kept.append(communicator)  # the group's store aborts the process when its socket is closed first
    for n, dtype in ((3, torch.bfloat16), (100_000, torch.float32)):
        tensor = torch.full((n,), float(rank), dtype=dtype)
        communicator.broadcast(tensor, src=2)
        communicator.group.barrier()
        assert torch.equal(tensor, torch.full((n,), 2.0, dtype=dtype))
    probe.boundary("train end")


def test_weight_sync_on_gloo_between_three_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trl.scripts.vllm_serve  # noqa: F401  (once, before the ranks are forked)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TEST_PORT", str(probe.getsockname()[1]))
    statuses = ranks.run(tmp_path, _sync, 3)
    assert statuses == [0, 0, 0], [path.read_text() for path in tmp_path.glob("failed-*")]
    for rank in range(3):
        (stream,) = ranks.streams(tmp_path, rank, "weight-sync")
        assert stream == [
            ("broadcast", "bfloat16", 3),
            ("barrier", "", None),
            ("broadcast", "float32", 100_000),
            ("barrier", "", None),
        ]
        groups = ranks.lines(tmp_path, rank, "group")
        # A rank that takes its time also tells of the group in which the ranks of this test have met.
        declared = [(g["backend"], g["ranks"], g["rank"]) for g in groups if g["name"] == "weight-sync"]
        assert declared == [("GlooCommunicator", [0, 1, 2], rank)]
