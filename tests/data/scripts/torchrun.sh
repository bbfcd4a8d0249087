#!/bin/bash
# The trainer through torchrun itself, options in arrays, the server cured by the asynchronous engine.
COMMON=(--model /models/base)
TRAIN=(
  "${COMMON[@]}"
  --rlhf_type grpo   # the algorithm
  --use_vllm=true
  --vllm-server-host 127.0.0.1
  --vllm-server-port 8000
  --num_generations 4
  --per_device_train_batch_size 2
  --per_device_eval_batch_size 2
)
export CUDA_VISIBLE_DEVICES=0,1
swift rollout "${COMMON[@]}" --vllm_data_parallel_size 2 --vllm_use_async_engine true &
until curl -sf http://127.0.0.1:8000/health/; do sleep 3; done
export CUDA_VISIBLE_DEVICES=2,3
python -m torch.distributed.run --nproc_per_node 2 --master_port 29511 swift/cli/rlhf.py "${TRAIN[@]}"
