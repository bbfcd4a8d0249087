"""Every place that Lockstep wraps or replaces is where the table says, in the release that is installed."""

from __future__ import annotations

import importlib

import pytest

from lockstep.inside.hooks import find
from lockstep.stacks.swift.compat import PLACES, place

INSIDE = {
    "client": ["PyNcclCommunicator", "VLLMClient"],
    "server communicator": ["PyNcclCommunicator"],
    "rollout": ["WeightSyncWorkerExtension", "SwiftRolloutDeploy"],
    "rewards": ["ORM", "orms"],
}


@pytest.mark.parametrize("name", [name for name in PLACES if name != "full training"])
def test_the_place_is_there(name: str) -> None:
    pytest.importorskip("vllm" if PLACES[name][0] == "vllm" else "swift")
    where = place(name)
    if ":" in where:
        assert find(where) is not None
        return
    importlib.import_module(where)
    for attribute in INSIDE[name]:
        assert find(f"{where}:{attribute}") is not None
