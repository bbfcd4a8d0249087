"""DeepSpeed's import asks nvcc wherever a GPU is to be had. A real import, in a process that is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.stacks.swift import toolkit
from lockstep.stacks.swift.commands import Ports, trainer_command
from lockstep.stacks.swift.gpu import gpu_job
from lockstep.stacks.swift.spec import Layout

pytest.importorskip("deepspeed")

IMPORT = """
import types
import torch

torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_capability = lambda *_: (9, 0)
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)
import deepspeed
from deepspeed.ops.op_builder.builder import installed_cuda_version

print("imported", installed_cuda_version(), torch.version.cuda)
"""


def _import(env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", IMPORT],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.lockstep_slow
def test_the_trainer_can_import_deepspeed_on_a_host_with_gpus_and_without_nvcc(tmp_path: Path) -> None:
    (tmp_path / "no toolkit").mkdir()
    bare = os.environ | {"CUDA_HOME": str(tmp_path / "no toolkit")}
    assert not toolkit.has_nvcc(bare)
    failed = _import(bare)
    assert "imported" not in failed.stdout
    assert "bin/nvcc" in failed.stderr.strip().splitlines()[-1]

    home = tmp_path / "stub"
    toolkit.make_stub(home)
    layout = Layout(trainer=(0, 1), rollout=(2, 3))
    job = gpu_job(
        "job", model=Path("/m"), datasets=Path("/d"), layout=layout, flash_attn=False, cuda_home=home
    )
    env = trainer_command(job, Ports.of(range(1, 7)), tmp_path, bare).env
    # Without the run's folder: nothing of this process is to be recorded.
    done = _import({name: value for name, value in env.items() if name != "LOCKSTEP_RUN_DIR"})
    assert done.returncode == 0, done.stderr[-2000:]
    told, cuda = done.stdout.strip().splitlines()[-1].removeprefix("imported ").rsplit(" ", 1)
    assert told == "(12, 8)"
    assert cuda == toolkit.RELEASE
