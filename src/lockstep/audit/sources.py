"""Where the facts behind the findings can be read: files of the releases that they were checked in."""

from __future__ import annotations

from lockstep.audit.model import Source

SWIFT, VLLM, TORCH, TRL = "ms-swift 3.10.3", "vllm 0.11.0", "torch 2.8.0", "trl 0.24.0"

MAIN = Source(SWIFT, "swift/cli/main.py")
ROLLOUT = Source(SWIFT, "swift/llm/infer/rollout.py")
DEPLOY_ARGUMENTS = Source(SWIFT, "swift/llm/argument/deploy_args.py")
RLHF_ARGUMENTS = Source(SWIFT, "swift/llm/argument/rlhf_args.py")
TRAINER_ARGUMENTS = Source(SWIFT, "swift/trainers/arguments.py")
BATCH_ARGUMENTS = Source(SWIFT, "swift/trainers/rlhf_arguments.py")
CLIENT = Source(SWIFT, "swift/trainers/rlhf_trainer/vllm_client.py")
MIXIN = Source(SWIFT, "swift/trainers/rlhf_trainer/rollout_mixin.py")
FREE_PORT = Source(SWIFT, "swift/utils/utils.py")
DEVICE_MAP = Source(SWIFT, "swift/utils/env.py")
DEFAULT_DDP = Source(SWIFT, "swift/utils/torch_utils.py")

ENGINE_CORE = Source(VLLM, "vllm/v1/engine/core.py")
FORWARD_CONTEXT = Source(VLLM, "vllm/forward_context.py")
PARALLEL = Source(VLLM, "vllm/config/parallel.py")
VLLM_ENVIRONMENT = Source(VLLM, "vllm/envs.py")
REFUSES_OFFLINE_DP = Source("vllm 0.14.0", "vLLM pull request 30739")
ONLINE_DP = Source("vllm", "vLLM issue 28224")

TORCHRUN = Source(TORCH, "torch/distributed/run.py")
RENDEZVOUS = Source(TORCH, "torch/distributed/elastic/rendezvous/utils.py")
UNKNOWN_OPTIONS = Source(SWIFT, "swift/llm/base.py")
RENAMED_OPTIONS = Source("ms-swift 3.7.0", "swift/llm/argument/infer_args.py")
TRL_ONLINE = Source("trl 1.11.0", "trl/scripts/vllm_serve.py")
TRL_SERVER = Source(TRL, "trl/scripts/vllm_serve.py")
GRPO_CONFIG = Source(TRL, "trl/trainer/grpo_config.py")
BASH = Source("bash", "the manual, 'Environment' and 'Quote Removal'")
