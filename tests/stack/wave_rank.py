"""One data-parallel rank as `swift rollout` sets it up: a worker with its own synchronous `LLMEngine` of
vLLM, in offline mode.

    python wave_rank.py RANK SIZE PORT FOLDER MODEL ROUNDS [open]

ROUNDS is JSON: per round, what each rank does: [requests, pause in seconds after the first of them, or
"raise" after so many requests, pause before the weights are synced]. After each round it waits for the other
ranks' answers, as the server does, and then all engine cores meet in a call, as in weight sync. `open`: with
the cure. Appends one line per round to FOLDER/rank-RANK."""

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
        (Path(folder) / f"{name}-{os.environ['VLLM_DP_RANK']}").touch()
        wait_for(Path(folder), name, size)


def wait_for(folder: Path, name: str, size: int) -> None:
    while not all((folder / f"{name}-{rank}").exists() for rank in range(size)):
        time.sleep(0.005)


def main(rank: int, size: int, folder: Path, model: str, rounds: list[Any], cure: str) -> None:
    from vllm import EngineArgs, LLMEngine

    if cure:
        from lockstep.remedies import open_wave

        open_wave.install()
        adding = open_wave.adding
    else:
        adding = nullcontext
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            max_model_len=128,
            enforce_eager=True,
            num_gpu_blocks_override=64,
            disable_log_stats=True,
            limit_mm_per_prompt={"image": 0, "video": 0},
            worker_extension_cls="wave_rank.Sync",
        )
    )
    said = folder / f"rank-{rank}"
    said.write_text("ready\n")
    for number, ranks in enumerate(rounds):
        requests, pause, sync_pause = ranks[rank]
        try:
            with adding(engine):
                answers = one_round(engine, number, requests, pause)
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


def one_round(engine: Any, number: int, requests: int, pause: float | str) -> int:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    for n in range(requests):
        engine.add_request(f"{number}-{n}", {"prompt_token_ids": [35, 36, 37, 38]}, params)
        if n == 0 and isinstance(pause, float):
            time.sleep(pause)
    if pause == "raise":
        raise RuntimeError("failed")
    answers = 0
    while engine.has_unfinished_requests():
        answers += sum(output.finished for output in engine.step())
    return answers


if __name__ == "__main__":
    from lockstep import cpu

    own, all_, port, where, checkpoint, plan, *rest = sys.argv[1:]
    os.environ |= {
        "VLLM_DP_RANK": own,
        "VLLM_DP_RANK_LOCAL": own,
        "VLLM_DP_SIZE": all_,
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": port,
        "LOCKSTEP_ROLLOUT_RANK": own,
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    cpu.apply_rollout()
    main(int(own), int(all_), Path(where), checkpoint, json.loads(plan), rest[0] if rest else "")
