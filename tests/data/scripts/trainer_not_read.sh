#!/bin/bash
ME=$(hostname -i)
CUDA_VISIBLE_DEVICES=0 trl vllm-serve --model base &
sleep 2m
CUDA_VISIBLE_DEVICES=1,2,3 accelerate launch --num_processes 3 my_grpo.py --vllm_mode server --vllm_server_host $ME
