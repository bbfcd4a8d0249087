"""What a remedy is. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NOT_MEASURED = "not yet measured"


@dataclass(frozen=True)
class Remedy:
    """`how` is what to type or change. `gives_up` is the price. `measured` is an outcome in the whole job, if
    there is one.
    """

    name: str
    how: str
    gives_up: str
    measured: str = NOT_MEASURED


@dataclass(frozen=True)
class Change:
    """What a remedy changes in the job, as data that `lockstep.stacks.swift.remedied` puts into a spec."""

    plugin: str = ""
    """File in this folder, for the rollout's `--external_plugins`."""
    rollout: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Arguments of `swift rollout`."""
    rollout_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of `swift rollout`."""
    trainer: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Arguments of `swift rlhf`."""
    tensor_parallel: bool = False
    """The rollout's devices are one engine with tensor parallelism."""
    servers: bool = False
    """Each of the rollout's devices is a server of its own."""


@dataclass(frozen=True)
class Tried(Remedy):
    """A remedy that is tried on the job with the late-rank fault."""

    kind: Literal["plugin", "setting", "none"] = "setting"
    change: Change = field(default_factory=Change)
    helps: bool = True
    """What is expected: that the job comes through."""
    note: str = ""
    """What must be known to read the outcome."""
