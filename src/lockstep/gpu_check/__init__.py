"""The first minutes on a machine with GPUs: whether what the job and the probe rely on is as it was read.

Each check is one question to the real driver, torch, NCCL, vLLM. It runs in a process of its own, so that one
that crashes or hangs takes no other with it. Most need one GPU, a few need two.
"""
