#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1,2,3
export NPROC_PER_NODE=4
python3 -m swift.cli.rlhf --rlhf_type grpo --model base --dataset text --use_vllm false \
  --per_device_train_batch_size 8 --num_generations 4
