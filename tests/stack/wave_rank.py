"""One data-parallel rank as `swift rollout` sets it up: a worker with its own synchronous `LLMEngine` of
vLLM, in offline mode.

    python wave_rank.py RANK SIZE PORT FOLDER MODEL ROUNDS [open] [experts]

ROUNDS is JSON: per round, what each rank does: [requests, pause in seconds after the first of them, or
"raise" after so many requests, pause before the weights are synced]. After each round it waits for the other
ranks' answers, as the server does, and then all engine cores meet in a call, as in weight sync. `open`: with
the cure, by its entry point, also on a release of vLLM that it does not know. `experts`: with expert
parallelism. Appends one line per round to FOLDER/rank-RANK, and the tokens of each answer to
FOLDER/tokens-RANK. SIZE 1: no data parallelism."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any


class Sync:
    """Worker extension: a call that returns once every rank's engine core is in it."""

    def meet(self, folder: str, name: str, size: int) -> None:
        (Path(folder) / f"{name}-{os.environ['LOCKSTEP_ROLLOUT_RANK']}").touch()
        wait_for(Path(folder), name, size)


def wait_for(folder: Path, name: str, size: int) -> None:
    while not all((folder / f"{name}-{rank}").exists() for rank in range(size)):
        time.sleep(0.005)


def main(rank: int, size: int, folder: Path, model: str, rounds: list[Any], options: list[str]) -> None:
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from lockstep.remedies import open_wave

    adding = open_wave.adding if "open" in options else nullcontext
    if json.loads((Path(model) / "config.json").read_text())["model_type"] == "qwen3_moe":
        own = {"skip_tokenizer_init": True, "worker_extension_cls": "moe_gaps.Sync"}
    else:
        own = {"limit_mm_per_prompt": {"image": 0, "video": 0}, "worker_extension_cls": "wave_rank.Sync"}
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            max_model_len=128,
            enforce_eager=True,
            num_gpu_blocks_override=64,
            disable_log_stats=True,
            enable_expert_parallel="experts" in options,
            **own,
        )
    )
    said, tokens = folder / f"rank-{rank}", folder / f"tokens-{rank}"
    said.write_text("ready\n")
    for number, ranks in enumerate(rounds):
        requests, pause, sync_pause = ranks[rank]
        try:
            with adding(engine):
                answers = one_round(engine, number, requests, pause, tokens)
        except RuntimeError as error:
            answers = str(error)
        with said.open("a") as file:
            file.write(f"round {number}: {answers}\n")
        (folder / f"answer-{number}-{rank}").touch()
        wait_for(folder, f"answer-{number}", size)
        time.sleep(sync_pause)
        engine.collective_rpc("meet", args=(str(folder), f"sync-{number}", size))
    with said.open("a") as file:
        file.write("done\n")
    os._exit(0)  # engines in offline mode end in any order; how they do is not what is tested


def one_round(engine: Any, number: int, requests: int, pause: float | str, tokens: Path) -> int:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, detokenize=False)
    for n in range(requests):
        engine.add_request(f"{number}-{n}", {"prompt_token_ids": [35, 36, 37, 38 + n]}, params)
        if n == 0 and isinstance(pause, float):
            time.sleep(pause)
    if pause == "raise":
        raise RuntimeError("failed")
    answers = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                answers += 1
                with tokens.open("a") as file:
                    file.write(f"{output.request_id}: {list(output.outputs[0].token_ids)}\n")
    return answers


if __name__ == "__main__":
    rank_, size_, port, where, checkpoint, plan, *options_ = sys.argv[1:]
    if int(size_) > 1:
        os.environ |= {
            "VLLM_DP_RANK": rank_,
            "VLLM_DP_RANK_LOCAL": rank_,
            "VLLM_DP_SIZE": size_,
            "VLLM_DP_MASTER_IP": "127.0.0.1",
            "VLLM_DP_MASTER_PORT": port,
        }
    os.environ |= {"LOCKSTEP_ROLLOUT_RANK": rank_, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if "open" in options_:
        os.environ["OPEN_WAVE"] = "untested"
    if os.environ.get("LOCKSTEP_CPU"):  # the pinned release: ms-swift and vLLM as in the job
        from lockstep.stacks.swift.inside import cpu

        cpu.apply_rollout()
    main(int(rank_), int(size_), Path(where), checkpoint, json.loads(plan), options_)
