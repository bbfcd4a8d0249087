"""What a remedy is. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

NOT_MEASURED = "not yet measured"


@dataclass(frozen=True)
class Remedy:
    """One thing to do about a cause."""

    name: str
    how: str
    """What to type or change."""
    gives_up: str
    """The price."""
    measured: str = NOT_MEASURED
    """An outcome in the whole job, if there is one."""
    experts: bool = True
    """Whether it also fits a mixture of experts, whose data-parallel ranks must step together."""
    since: tuple[str, str] | None = None
    """The package that has it built in, and its first release that does."""
    file: str = ""
    """The single file in this folder that it consists of; `lockstep remedy` writes it out."""

    @property
    def id(self) -> str:
        """What it is asked for by: `independent-ranks`."""
        return self.name.replace(" ", "-")

    @property
    def advice(self) -> str:
        """What to type or change, from the beginning: a remedy that is a file must be written out first."""
        return f"lockstep remedy {self.id} -o {self.file}, then {self.how}" if self.file else self.how


@dataclass(frozen=True)
class Change:
    """What a remedy changes in the job, as data that `lockstep.stacks.swift.remedied` puts into a spec."""

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
