"""Two engines on one GPU: the places of the pinned ms-swift that it changes, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("swift")

BODY = """
import os
from lockstep.stacks.swift.inside import one_gpu
from lockstep.inside.hooks import find, replace
from lockstep.stacks.swift.compat import place

where = f"{place('rollout')}:SwiftRolloutDeploy.get_infer_engine"
replace(where, staticmethod(lambda *args: os.environ["VLLM_DP_RANK_LOCAL"]))
one_gpu.apply_rollout()
os.environ["VLLM_DP_RANK_LOCAL"] = "1"
print("seen", find(place("device count"))(), find(where).__func__("arguments"))
"""


@pytest.mark.lockstep_slow
def test_the_second_engine_takes_the_first_gpu_and_two_are_allowed() -> None:
    env = os.environ | {"LOCKSTEP_ONE_GPU": "2"}
    done = subprocess.run([sys.executable, "-c", BODY], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip().splitlines()[-1:] == ["seen 2 0"], done.stderr[-1500:]
