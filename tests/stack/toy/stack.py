"""A second stack: torchrun and gloo, no server, no packages but torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep import env
from lockstep.stacks.base import HOST, Arm, Command, Expected, Fault, Folders, Launch, Pins, Request, Stack
from lockstep.verdict import Kind, Names

TRAIN = Path(__file__).with_name("train.py")
GROUP = "trainer.world"


@dataclass(frozen=True)
class ToyJob:
    name: str = "toy"
    device: str = "cpu"
    steps: int = 8
    fault: dict[str, Any] | None = None
    remedy: str | None = None
    cache: Path | None = None

    @property
    def instead(self) -> Mapping[str, str]:
        return {}

    @property
    def stack(self) -> Stack:
        return TOY

    def ports_needed(self) -> int:
        return 1

    def launch(self, ports: Sequence[int], run_dir: Path, base: Mapping[str, str] = os.environ) -> Launch:
        own = {env.RUN_DIR: str(run_dir), "TORCH_FR_BUFFER_SIZE": "1000", "GLOO_SOCKET_IFNAME": "lo"}
        if self.fault:
            own[env.FAULT] = json.dumps(self.fault)
        argv = [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--master-addr", HOST, "--master-port", str(ports[0])),
            *(str(TRAIN), str(self.steps)),
        ]
        return Launch(Command(argv, {**base, **own}), {"trainer's rendezvous": ports[0]})

    def with_(self, **changes: Any) -> ToyJob:
        return replace(self, **changes)

    def sized(self, steps: int, eval_steps: int, save_steps: int) -> ToyJob:
        return replace(self, steps=steps)

    def groups(self) -> tuple[str, ...]:
        return (GROUP,)

    def service_groups(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> str:
        return "two ranks on the CPU"


def check(request: Request) -> None:
    """Every machine with torch has it."""


def plan(request: Request) -> ToyJob:
    return ToyJob(steps=request.steps)


def arms(job: ToyJob) -> list[Arm]:
    through = (("step", job.steps), ("eval end", 1), ("save end", 1), ("train end", 1))
    return [
        Arm(job.with_(name="control"), Kind.IN_STEP, boundaries=through),
        Arm(
            job.with_(name="left alone", fault={"name": "left alone", "rank": 1, "step": 6}),
            Kind.STUCK,
            group=GROUP,
            waiting=(0,),
            absent=(1,),
        ),
    ]


FAULTS = (
    Fault("none", "-", "a clean run", Expected(Kind.IN_STEP), "nothing is wrong"),
    Fault(
        "left alone",
        "trainer",
        "a rank that waits in a queue",
        Expected(Kind.STUCK, GROUP, 1, agreed="save end 1", cause="blocked-elsewhere"),
        "its peer waits in the next all-reduce",
        {"rank": 1, "step": 2},
    ),
)
TOY = Stack(
    name="toy",
    main="trainer",
    service="",
    folders=Folders({}, {}),
    names=Names(),
    check=check,
    prepare=plan,
    plan=plan,
    example=lambda device: ToyJob(device=device),
    arms=arms,
    pins=Pins({"torch": version("torch")}, {"cpu": {}}),
    faults=FAULTS,
)
