"""Every check, firing and not firing: one case a line."""

# ruff: noqa: E501

from __future__ import annotations

import pytest
from audits import CHECK, ROLLOUT, TRAINER, audit, by_id, script

from lockstep.audit import Severity

DP2 = f"{ROLLOUT} --vllm_data_parallel_size 2"
V = {"vllm": "0.11.0", "ms-swift": "3.10.3"}
H, W, N, OK = Severity.HAZARD, Severity.WARNING, Severity.NOTE, Severity.OK


def test_clean_job_has_no_hazard():
    found = audit(script(), V)
    assert {f.id for f in found if f.severity in (H, W)} == {"weight-sync-port-fixed"}
    assert {"engine", "gpus-apart", "ranks-match-gpus", "server-gpus", "batch-divides", "ports-agree", "health-check",
            "boundaries"} == {f.id for f in found if f.severity is OK}  # fmt: skip


FIRES = [
    # (script, id, severity, line, part of the title or reason)
    (script(rollout=f"{DP2} &"), "offline-wave-race", H, 2, "data parallel size 2"),
    (script(rollout=f"{DP2} --vllm_use_async_engine false &"), "offline-wave-race", H, 2, "synchronous"),
    (script(rollout="trl vllm-serve --model m --data_parallel_size 2 &"), "offline-wave-race", H, 2, "trl 0.24.0"),
    (script(rollout=f"{DP2} --vllm_use_async_engine $A &"), "engine-unknown", W, 2, "only known when"),
    (script(rollout=f"{ROLLOUT} --vllm_data_parallel_size $N &"), "data-parallel-unknown", N, 2, "$N"),
    (script(rollout=f"{DP2} --vllm_enforce_eager true &"), "no-help", N, 2, "CUDA graphs"),
    (script(rollout=f"VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION=1 {DP2} &"), "no-help", N, 2, "absent"),
    (script(rollout=f"MASTER_PORT=1 {ROLLOUT} --vllm_tensor_parallel_size 2 &"), "rollout-master-port", W, 2, "get_open_port"),
    (script(rollout=f"NPROC_PER_NODE=2 {ROLLOUT} &"), "rollout-nproc-per-node", W, 2, "no effect"),
    (script(rollout=f"MASTER_ADDR=h {ROLLOUT} &"), "rollout-master-addr", N, 2, "no effect"),
    (script(rollout=f"export VLLM_DIST_PORT=1\n{ROLLOUT} &"), "variable-never-read", N, 2, "VLLM_DIST_PORT"),
    (script(trainer=f"MASTER_ADDR=$MASTER_ADDR {TRAINER}"), "master-addr-from-outside", N, 4, "empty"),
    (script(trainer=f"MASTER_PORT=$P {TRAINER}"), "master-port-from-outside", N, 4, "empty"),
    (script(trainer=f"{TRAINER} --vllm_max_model_len 100"), "trainer-option-without-effect", N, 4, "vllm_max_model_len"),
    (script(rollout=f"VLLM_PORT=5\n{ROLLOUT} &"), "not-exported", W, 2, "VLLM_PORT"),
    (script(), "weight-sync-port-fixed", W, 4, "51216"),
    (script(trainer=TRAINER.replace("127.0.0.1", "h1 h2").replace("8001", "8001 8002")), "weight-sync-port-fixed", W, 4, "51216 to 51217"),
    (script(trainer=TRAINER.replace("8001", "8002")), "port-mismatch", H, 4, "8002"),
    (script(trainer=TRAINER.replace("8001", "$P")), "port-unknown", N, 4, "$P"),
    (script(rollout=ROLLOUT.replace("8001", "$(p)") + " &"), "port-picked-early", N, 2, "$(p)"),
    (script(trainer=f"MASTER_PORT=8001 {TRAINER}"), "port-clash", H, 4, "8001"),
    (script(rollout=ROLLOUT.replace("8001", "51216") + " &", trainer=TRAINER.replace("8001", "51216")), "port-clash", H, 2, "51216"),
    (script(wait="sleep 120"), "sleep-instead-of-health-check", W, 3, "sleep 120"),
    (script(wait="sleep 5m"), "sleep-instead-of-health-check", W, 3, "sleep 5m"),
    (script(wait="sleep $WAIT"), "sleep-instead-of-health-check", W, 3, "$WAIT"),
    (script(rollout=ROLLOUT), "server-in-foreground", W, 2, "line 4"),
    (script(trainer=TRAINER.replace("--vllm_server_host 127.0.0.1", "")), "server-unused", H, 4, "colocate"),
    (TRAINER, "server-elsewhere", N, 1, "another script"),
    (script(rollout=ROLLOUT.replace("6,7", "1") + " &"), "gpu-overlap", H, 4, "GPU 1"),
    (script(rollout="swift rollout --model m --port 8001 &"), "gpu-overlap", H, 4, "GPU 0"),
    (script(rollout=f"docker run -d --gpus '\"device=0\"' img {ROLLOUT.split(' ', 1)[1]}"), "gpu-overlap", H, 4, "GPU 0"),
    (script(trainer=TRAINER.replace("NODE=2", "NODE=3")), "ranks-exceed-gpus", H, 4, "3 ranks on 2"),
    (script(trainer=TRAINER.replace("NODE=2", "NODE=1")), "ranks-below-gpus", H, 4, "device_map"),
    (script(trainer=TRAINER.replace("NPROC_PER_NODE=2", "")), "ranks-below-gpus", H, 4, "not set"),
    (script(trainer=TRAINER.replace("0,1 NPROC_PER_NODE=2", "0,1,2 NPROC_PER_NODE=2")), "ranks-below-gpus", H, 4, "multiple"),
    (script(trainer=TRAINER.replace("0,1", "$GPUS")), "gpus-unknown", N, 4, "$GPUS"),
    (script(rollout=f"{ROLLOUT} &"), "server-gpus-idle", W, 2, "only 1"),
    (script(rollout=f"{ROLLOUT} --vllm_tensor_parallel_size 4 &"), "server-gpus-missing", H, 2, "needs 4"),
    (script(trainer=f"{TRAINER} --num_generations 3"), "batch-not-divisible", H, 4, "2 ranks x 4 x 1 = 8"),
    (script(trainer=f"{TRAINER} --per_device_eval_batch_size 3"), "eval-batch-not-divisible", H, 4, "6 completions"),
    (script(trainer=f"{TRAINER} --num_generations 1"), "num-generations-low", H, 4, "fewer than 2"),
    (script(trainer=f"{TRAINER} --generation_batch_size 12"), "generation-batch-uneven", H, 4, "multiple of 8"),
    (script(trainer=f"{TRAINER} --generation_batch_size 8 --steps_per_generation 1"), "batch-options-exclude", H, 4, "both"),
    (TRAINER.replace("--vllm_server_host 127.0.0.1", "--vllm_tensor_parallel_size 4"), "colocate-uneven", H, 1, "4 does not divide 2"),
    (script(trainer=f"NCCL_TIMEOUT=9 {TRAINER}"), "timeout-without-effect", N, 4, "ddp_timeout"),
    (script(rollout=f"source env.sh\n{ROLLOUT} &"), "sourced", N, 2, "env.sh"),
    (script(rollout=f"bash other.sh\n{ROLLOUT} &"), "calls-script", N, 2, "other.sh"),
    (script(rollout="swift rollout \\\n # why\n --port 8001 &"), "arguments-cut-off", H, 3, "line 4"),
    (script(rollout="swift rollout \\ \n --port 8001 &"), "arguments-cut-off", H, 2, "line 3"),
    (script(rollout="swift rollout --model m \\\n --host h\n --port 8001 &"), "arguments-cut-off", H, 3, "line 4"),
    (script(rollout="x=)\n" + ROLLOUT), "not-understood", N, 2, "shell parser"),
    (script().replace("\n", "\r\n"), "carriage-returns", N, 1, "CR"),
    (script(), "releases-unknown", N, 2, "--versions"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "id_", "severity", "line", "words"), FIRES)
def test_fires(text, id_, severity, line, words):
    finding = by_id(audit(text))[id_]
    assert (finding.severity, finding.place.line) == (severity, line)
    assert words in finding.title + finding.reason


SILENT = [
    (script(rollout=f"{ROLLOUT} --vllm_data_parallel_size 1 &"), "offline-wave-race"),
    (script(rollout=f"{DP2} --vllm_use_async_engine true &"), "offline-wave-race"),
    (script(rollout=f"{DP2} --multi_turn_scheduler s &"), "offline-wave-race"),
    (script(rollout=f"{DP2} --external_plugins a.py plugins/independent_ranks.py &"), "offline-wave-race"),
    (script(rollout=f"VLLM_ENABLE_V1_MULTIPROCESSING=0 {DP2} &"), "offline-wave-race"),
    (script(rollout=f"{DP2} --vllm_enforce_eager true --vllm_use_async_engine true &"), "no-help"),
    (script(trainer=f"MASTER_PORT=29600 {TRAINER}"), "rollout-master-port"),
    (script(trainer=f"MASTER_ADDR=10.0.0.1 {TRAINER}"), "master-addr-from-outside"),
    (script(rollout=f"export VLLM_PORT=5\n{ROLLOUT} &"), "not-exported"),
    (script(rollout=f"CUDA_VISIBLE_DEVICES=6,7\n{ROLLOUT.replace('6,7', '$CUDA_VISIBLE_DEVICES')} &"), "not-exported"),
    (TRAINER.replace("--vllm_server_host 127.0.0.1", ""), "weight-sync-port-fixed"),
    (script(), "port-mismatch"),
    (script(), "port-clash"),
    (script(wait="sleep 3"), "sleep-instead-of-health-check"),
    (script(wait=f"sleep 60\n{CHECK}"), "sleep-instead-of-health-check"),
    (script(wait=CHECK), "sleep-instead-of-health-check"),
    (script(rollout=f"( {ROLLOUT} ) &"), "server-in-foreground"),
    (script(rollout=f"docker run -d img {ROLLOUT.split(' ', 1)[1]}"), "server-in-foreground"),
    (script(rollout=f"ssh other {ROLLOUT.replace('6,7', '0,1')} &"), "gpu-overlap"),
    (script(trainer=f"{TRAINER} --num_generations 3 --eval_strategy no"), "eval-batch-not-divisible"),
    (script(trainer=f"{TRAINER} --num_generations 3".replace("--val_dataset v", "")), "eval-batch-not-divisible"),
    (script(trainer=f"{TRAINER} --num_generations $G"), "batch-not-divisible"),
    (script(trainer=TRAINER.replace("swift", "megatron") + " --num_generations 3"), "batch-not-divisible"),
    (script(rollout=ROLLOUT.replace("6,7", "1"), trainer=TRAINER.replace("127.0.0.1", "10.0.0.9")), "gpu-overlap"),
    ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file c.yaml swift/cli/rlhf.py --model m", "ranks-below-gpus"),
    ("CUDA_VISIBLE_DEVICES=0,1 swift rlhf --use_ray true --model m", "ranks-below-gpus"),
    (script().rstrip() + " \\\n", "not-understood"),
    (script(trainer=f"{TRAINER} --gradient_accumulation_steps 3 --num_generations 6 --eval_strategy no"), "batch-not-divisible"),
    (script(trainer=f"{TRAINER} --generation_batch_size 16"), "generation-batch-uneven"),
    (script(rollout="swift rollout \\\n --port 8001 \\\n\\\n --host h &"), "arguments-cut-off"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "id_"), SILENT)
def test_does_not_fire(text, id_):
    assert id_ not in by_id(audit(text))


@pytest.mark.parametrize(
    ("versions", "id_", "words"),
    [
        ({"vllm": "0.11.0"}, "offline-wave-race", "on vLLM 0.11.0"),
        ({"vllm": "0.10.2"}, "offline-wave-race", "Checked with vLLM 0.11.0"),
        ({}, "offline-wave-race", "the release is not known"),
        ({"vllm": "0.14.0"}, "offline-dp-refused", "refuses"),
        ({"vllm": "0.19.1"}, "offline-dp-refused", "0.14.0"),
        ({"vllm": "not a version"}, "offline-wave-race", "not a version"),
    ],
)
def test_releases_decide(versions, id_, words):
    found = audit(script(rollout=f"{DP2} &"), versions)
    assert found[0].id == id_
    assert found[0].severity is H
    assert words in found[0].title + found[0].reason


@pytest.mark.parametrize(
    ("swift", "race"), [("4.2.0", True), ("4.2.1", False), ("4.6.0", False), ("x", True)]
)
@pytest.mark.parametrize("vllm", ["0.11.0", "0.14.0"])
def test_a_later_swift_has_engines_apart(swift, race, vllm):
    found = by_id(audit(script(rollout=f"{DP2} &"), {"ms-swift": swift, "vllm": vllm}))
    assert race == any(name.startswith("offline") for name in found)
    assert race or f"ms-swift {swift} makes each" in found["engine"].title


LATER = {"ms-swift": "4.2.1", "vllm": "0.11.0"}


@pytest.mark.parametrize(("plugin", "fires"), [("independent_ranks.py", True), ("open_wave.py", False)])
def test_a_cure_that_a_later_swift_is_itself(plugin, fires):
    text = script(rollout=f"{DP2} --external_plugins {plugin} &")
    assert ("cure-in-the-way" in by_id(audit(text, LATER))) == fires
    assert "cure-in-the-way" not in by_id(audit(text, {**LATER, "ms-swift": "4.2.0"}))


def test_a_later_swift_is_no_cure_for_expert_parallelism():
    text = script(rollout=f"{DP2} --vllm_enable_expert_parallel true &")
    assert by_id(audit(text, LATER))["engine"].severity is N
    race = by_id(audit(text, {"vllm": "0.11.0"}))["offline-wave-race"]
    assert "later ms-swift" not in race.advice
    assert "open wave" in race.advice
    assert "later ms-swift" in by_id(audit(script(rollout=f"{DP2} &"), V))["offline-wave-race"].advice


def test_a_later_swift_is_nothing_to_trl():
    rollout = "trl vllm-serve --model m --data_parallel_size 2 &"
    found = by_id(audit(script(rollout=rollout), {"ms-swift": "4.2.1", "vllm": "0.11.0"}))
    assert "offline-wave-race" in found


def test_pinned_in_the_script():
    found = audit("pip install vllm==0.14.1\n" + script(rollout=f"{DP2} &"))
    assert found[0].id == "offline-dp-refused"
    assert "releases-unknown" not in by_id(found)


def test_every_serious_finding_says_where_its_fact_can_be_read():
    for text, *_ in FIRES:
        for finding in audit(text):
            if finding.severity in (H, W):
                assert finding.sources or finding.id in ("gpu-overlap", "port-clash"), finding.id
                assert finding.reason
