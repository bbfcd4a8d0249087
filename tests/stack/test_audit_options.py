"""The tables of options are those of the pinned releases."""

from __future__ import annotations

import dataclasses

import pytest

from lockstep.audit.known_options import KNOWN, RENAMED


@pytest.mark.parametrize(
    ("sub", "name"),
    [
        ("rollout", "RolloutArguments"),
        ("deploy", "DeployArguments"),
        ("sft", "TrainArguments"),
        ("rlhf", "RLHFArguments"),
    ],
)
def test_the_options_of_swift(sub: str, name: str) -> None:
    import swift.llm

    fields = {field.name for field in dataclasses.fields(getattr(swift.llm, name)) if field.init}
    assert fields == KNOWN[sub]
    assert not RENAMED & KNOWN["rollout"]


def test_the_options_of_trl_vllm_serve() -> None:
    from trl.scripts.vllm_serve import ScriptArguments

    assert {field.name for field in dataclasses.fields(ScriptArguments)} == KNOWN["vllm-serve"]
