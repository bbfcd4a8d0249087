"""The stack of the incident: ms-swift with vLLM for the rollout and DeepSpeed for the trainer."""
