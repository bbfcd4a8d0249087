#!/bin/bash
pip install 'trl==1.12.0' 'vllm==0.30.1'
CUDA_VISIBLE_DEVICES=4,5,6,7 trl vllm-serve --model base --data_parallel_size 4 &
CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 my_grpo.py --vllm_mode server
