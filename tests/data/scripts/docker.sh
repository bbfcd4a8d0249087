#!/usr/bin/env bash
IMAGE=registry.example/modelscope:ubuntu22.04-cuda12.8.1-py311-torch2.8.0-vllm0.11.0-swift3.10.3
docker run -d --name rollout --gpus '"device=6,7"' -e MASTER_PORT=29501 -v /data:/data --ipc=host --network=host $IMAGE bash -c '
swift rollout \
  --model /data/base \
  --port 8001 \
  --vllm_data_parallel_size 2
'
sleep 2m
docker run --rm --gpus '"device=0,1,2,3"' -e NPROC_PER_NODE=4 --ipc=host --network=host $IMAGE bash -c "swift rlhf --rlhf_type grpo --model /data/base \
  --use_vllm true --vllm_server_host 127.0.0.1 --vllm_server_port 8001 --num_generations 8 --per_device_train_batch_size 8 --per_device_eval_batch_size 8"
