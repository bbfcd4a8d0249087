#!/bin/bash
CUDA_VISIBLE_DEVICES=6,7 swift rollout --model base --port 9100 --data_parallel_size 2 &
until curl -sf 127.0.0.1:9100/health/; do sleep 3; done
CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model base --dataset text \
  --use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1 --vllm_server_port 9100 \
  --per_device_train_batch_size 2 --num_generations 4
