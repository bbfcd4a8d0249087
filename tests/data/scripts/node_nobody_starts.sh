#!/bin/bash
export NNODES=2
export NODE_RANK=0
NPROC_PER_NODE=4 swift sft --model base --dataset text --deepspeed zero2
