"""What a stack is: the commands that make up its job, and the experiments that it offers. Data and protocols.

`run/` starts and watches any `Job`; `experiments/` runs any `Stack`. Neither knows a package by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lockstep.remedies.model import Tried
from lockstep.verdict import Kind, Names

HOST = "127.0.0.1"
"""Where every port of a job is."""


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and its whole environment."""

    argv: list[str]
    env: dict[str, str]


@dataclass(frozen=True)
class Service:
    """A command that must answer before the job is ready, and must live until the main command has ended."""

    name: str
    """Of its log: `rollout`, `rollout-1`."""
    command: Command
    port: int
    """It is ready when it answers `GET /health/` there."""
    port_name: str
    """What messages call this port; a key of `Launch.ports`."""


@dataclass(frozen=True)
class Launch:
    """What the supervisor starts for a job."""

    main: Command
    ports: Mapping[str, int]
    """What each port is for, as messages name it -> its number."""
    services: tuple[Service, ...] = ()
    ras: Mapping[str, int] = field(default_factory=dict)
    """Side -> the port on which its NCCL answers questions; empty without NCCL."""


@dataclass(frozen=True)
class Folders:
    """Variables that lead a stack's packages into folders of the run. Values are relative paths."""

    private: Mapping[str, str]
    """Into the run's temporary folder, which goes with the job."""
    cached: Mapping[str, str]
    """Into the folder that is kept between jobs, for what is compiled or looked up once."""


class StackError(RuntimeError):
    """This environment lacks a package of the stack, or something that its job needs."""


@dataclass(frozen=True)
class Choice:
    """What of a job can be chosen on GPUs; see `lockstep.devices.split` for the first two."""

    gpus: str | None = None
    rollout_gpus: str | None = None
    model: Path | None = None
    """A real checkpoint's folder; None for the tiny one."""


@dataclass(frozen=True)
class Request:
    """What somebody asks a stack for: its job on a device, with so many optimizer steps."""

    device: str
    """`cpu` or `cuda`."""
    steps: int
    out: Path
    """Absolute; runs are made below it, models and caches beside it."""
    choice: Choice = Choice()
    instead: Mapping[str, str] = field(default_factory=dict)
    """Releases that are wanted on purpose in place of the pinned ones."""
    alone: bool = False
    """Whether the services will run without the main command."""


class Job(Protocol):
    """One run of a stack's job, as data."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def fault(self) -> dict[str, Any] | None: ...
    @property
    def remedy(self) -> str | None: ...
    @property
    def cache(self) -> Path | None:
        """A folder that is kept between jobs; the caller's own caches if None."""

    @property
    def instead(self) -> Mapping[str, str]:
        """What this device cannot honour of the job as it was posted: name -> what is done instead."""

    @property
    def stack(self) -> Stack: ...
    def ports_needed(self) -> int: ...
    def launch(self, ports: Sequence[int], run_dir: Path, base: Mapping[str, str] = os.environ) -> Launch: ...
    def with_(self, **changes: Any) -> Any:
        """Return the same job with another `name`, `fault` or `remedy`."""

    def sized(self, steps: int, eval_steps: int, save_steps: int) -> Any:
        """Return the same job with other numbers of steps: in all, from evaluation to evaluation, and from
        save to save."""

    def groups(self) -> tuple[str, ...]:
        """Return the names of all groups that the job has used on every rank when it came through."""

    def service_groups(self) -> tuple[str, ...]:
        """Return those in which its services' ranks keep step with each other."""

    def describe(self) -> str:
        """Return which devices and ranks it has, in one line."""


class Watch(Protocol):
    """What does a fault from outside of the job's processes."""

    did: list[str]
    """What was done, in words."""


Outside = Callable[[Path], AbstractContextManager[Watch]]
"""From the run's folder, who does a fault from outside while the job runs."""


@dataclass(frozen=True)
class Arm:
    """One run and how it must end."""

    spec: Job
    expected: Kind
    group: str = ""
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    boundaries: tuple[tuple[str, int], ...] = ()
    """Boundaries that every rank of the main side must have passed at least so often."""
    outside: Outside | None = None


@dataclass(frozen=True)
class Expected:
    """What the verdict on a fault must say. Empty parts are not looked at."""

    kind: Kind
    group: str = ""
    rank: int | None = None
    """The faulty rank of the group: absent, or odd, or (of two) the one that issued `operation`."""
    operation: str = ""
    """With what the operation begins that the faulty rank issued."""
    agreed: str = ""
    """The last boundary at which all ranks of the group agreed."""
    lost: str = ""
    """The process that was gone first."""
    cause: str = ""
    or_kind: Kind | None = None
    """The other kind that the same fault may end in, where the backend decides between abort and hang."""

    @property
    def kinds(self) -> str:
        return " or ".join(kind.value for kind in (self.kind, self.or_kind) if kind)


@dataclass(frozen=True)
class Fault:
    """A way to make the job go wrong on purpose."""

    name: str
    side: str
    twin: str
    """What makes this happen in real jobs."""
    expected: Expected
    why: str
    """Why this verdict and no other."""
    arguments: dict[str, Any] | None = None
    change: Callable[[Any, Path], Any] | None = None
    """Changes the run's spec; may write below the folder."""
    outside: Outside | None = None

    def spec(self, job: Job, folder: Path) -> Job:
        fault = {"name": self.name, **self.arguments} if self.arguments is not None else None
        spec: Job = job.with_(name=self.name, fault=fault)
        return self.change(spec, folder) if self.change else spec


@dataclass(frozen=True)
class Trial:
    """How remedies are tried on a stack: each on the job with the same fault."""

    remedies: Sequence[Tried]
    apply: Callable[[Any, Tried], Any]
    """From a job and a remedy, the job with the remedy in place."""
    fault: Mapping[str, Any]
    happened: str
    """What the fault prints in a log of the job when it acts."""
    steps: int
    """As many as the fault needs."""


@dataclass(frozen=True)
class Prompt:
    """One row of the data set: the question, and its pictures as base64."""

    text: str
    images: tuple[str, ...]


@dataclass(frozen=True)
class Soak:
    """How a stack's first service is asked for rounds, without the main command."""

    about: str
    """What is asked, for the page: `the real ... server of ...`."""
    path: str
    """Of the request."""
    prompts: Callable[[], list[Prompt]]
    body: Callable[[Sequence[Prompt], int, int], Mapping[str, Any]]
    """From prompts, tokens of each answer and the sampling's seed: the request's JSON."""
    workers: Callable[[Any], int]
    """How many processes of a job's service add requests."""


@dataclass(frozen=True)
class Bisection:
    """What a bisection of releases must know of a stack."""

    group: str
    """The group of the hang that is looked for; also with `.cpu` where it is synchronised on the CPU."""
    refusals: tuple[str, ...] = ()
    """Patterns of what a release prints when it refuses the job by a check of its own; group 1 is quoted."""
    names_torch: frozenset[str] = frozenset()
    """Distributions that pin their torch exactly."""
    gpu_only: frozenset[str] = frozenset()
    """Packages whose checkout can only be built for GPUs."""


@dataclass(frozen=True)
class Pins:
    """The packages of which a stack pins the release."""

    releases: Mapping[str, str]
    """Package -> release, but for those whose distribution depends on the device."""
    by_device: Mapping[str, Mapping[str, tuple[str, str]]]
    """Device -> package -> distribution and release."""

    def names(self) -> list[str]:
        """Return the packages that can be asked for by name."""
        return [*self.releases, *dict.fromkeys(name for known in self.by_device.values() for name in known)]

    def distribution(self, package: str, device: str) -> str:
        """Return a package's name on the index."""
        return self.by_device[device].get(package, (package, ""))[0]

    def wanted(self, device: str) -> dict[str, str]:
        """Return every distribution that is pinned for a device, with its release."""
        return {**self.releases, **dict(self.by_device[device].values())}


@dataclass(frozen=True)
class Stack:
    """One stack: everything that `run/` and `experiments/` ask of it. Get one by `lockstep.stacks.get`."""

    name: str
    main: str
    """Side of the main command, whose end is the job's end."""
    service: str
    """Side of the services; empty if the stack has none."""
    folders: Folders
    names: Names
    """What tells some causes in a verdict on its jobs."""
    check: Callable[[Request], None]
    """Raises StackError or DeviceError if the request cannot be met here. Writes nothing."""
    prepare: Callable[[Request], Job]
    """Returns the job with everything in place that it names. Raises StackError and OSError."""
    plan: Callable[[Request], Job]
    """Returns the job as it would be, with nothing in place. Raises DeviceError."""
    example: Callable[[str], Job]
    """Returns a job for a device of which only its arms are asked for by name."""
    arms: Callable[[Any], list[Arm]]
    pins: Pins
    faults: Sequence[Fault] = ()
    trial: Trial | None = None
    soak: Soak | None = None
    bisection: Bisection | None = None
    known_hang: str = ""
    """Cause of the hang that the job is known for, and that it may meet with nothing done to it."""
    service_error: str = ""
    """What stands in the main command's error where the reason is a service's failure."""
