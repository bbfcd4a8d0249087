"""Every fault with the run that makes it and the verdict that it must get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.stacks.swift.mixed_data import without_images
from lockstep.stacks.swift.outside_faults import FromOutside, kill_engine_core, stop_worker
from lockstep.stacks.swift.spec import JobSpec
from lockstep.verdict import Kind

WORLD = "trainer.world"
ZERO = "trainer.zero"
DP = "rollout.dp"


@dataclass(frozen=True)
class Expected:
    """What the verdict must say. Empty parts are not looked at."""

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
    name: str
    side: str
    twin: str
    """What makes this happen in real jobs."""
    expected: Expected
    why: str
    """Why this verdict and no other."""
    arguments: dict[str, Any] | None = None
    change: Callable[[JobSpec, Path], JobSpec] | None = None
    """Changes the run's spec; may write below the folder."""
    outside: Callable[[Path], FromOutside] | None = None
    """From the run's folder, who does it from outside."""

    def spec(self, job: JobSpec, folder: Path) -> JobSpec:
        fault = {"name": self.name, **self.arguments} if self.arguments is not None else None
        spec = job.with_(name=self.name, fault=fault)
        return self.change(spec, folder) if self.change else spec


def _mixed(spec: JobSpec, folder: Path) -> JobSpec:
    return spec.with_(train_data=without_images(spec.train_data, folder / "data" / "train.jsonl"))


_OTHER_ALL_REDUCE = Expected(
    Kind.DIVERGED,
    WORLD,
    1,
    "all_reduce",
    "step 1",
    cause="rank-dependent-control-flow",
    or_kind=Kind.STUCK,
)

FAULTS = [
    Fault(
        "none",
        "-",
        "a clean run",
        Expected(Kind.IN_STEP),
        "nothing is wrong, and nothing may be reported",
    ),
    Fault(
        "skipped collective",
        "trainer",
        "`if is_main_process:` around a gather",
        Expected(Kind.DIVERGED, WORLD, 1, "all_gather", "step 1", cause="rank-dependent-control-flow"),
        "gloo takes the next collective for the missing one, gets too much and aborts; NCCL would hang",
        {"rank": 1, "step": 1},
    ),
    Fault(
        "extra collective",
        "trainer",
        "a callback that sums up a flag only where the loss is not finite",
        Expected(Kind.STUCK, WORLD, 1, "all_reduce", "step 1", cause="rank-dependent-control-flow"),
        "each waits in another collective with the same number",
        {"rank": 1, "step": 1},
    ),
    Fault(
        "other order",
        "trainer",
        "metrics summed up in the order of a set",
        _OTHER_ALL_REDUCE,
        "gloo sums up in pieces and only looks whether each fits into its buffer: it aborts a rank, or lets "
        "one go on while the other waits for more",
        {"rank": 1, "step": 1},
    ),
    Fault(
        "other size",
        "trainer",
        "one number per class that the rank has seen",
        _OTHER_ALL_REDUCE,
        "as above",
        {"rank": 1, "step": 1},
    ),
    Fault(
        "rows without an image",
        "trainer",
        "a data set in which some rows have no image (ms-swift issue 9104)",
        Expected(Kind.IN_STEP),
        "ms-swift 3.10.3 runs Qwen3-VL's vision tower on a dummy image then",
        {},
        change=_mixed,
    ),
    Fault(
        "vision tower left out",
        "trainer",
        "the same on a model or release without that",
        # Gloo aborts the rank that gets too much, now at once and now seconds later.
        Expected(Kind.DIVERGED, WORLD, agreed="generate end", cause="mixed-batch", or_kind=Kind.STUCK),
        "the ranks gather other parameters",
        {},
        change=_mixed,
    ),
    Fault(
        "reward raises",
        "trainer",
        "a reward function that fails on one answer",
        Expected(Kind.INCOMPLETE, lost="trainer rank 1", cause="rank-died"),
        "the rank ends, torchrun ends its peers: nobody left the order",
        {"rank": 1, "step": 1},
    ),
    Fault(
        "extra eval batch",
        "trainer",
        "an evaluation set split unevenly and not padded",
        Expected(
            Kind.DIVERGED, WORLD, 1, "generate begin", "generate end", cause="rank-dependent-control-flow"
        ),
        "its peers gather their metrics with the same collectives: the ranks exchange what is meant for "
        "others and one of them fails on it; only the boundaries differ",
        {"rank": 1, "evaluation": 1},
    ),
    Fault(
        "lone save",
        "trainer",
        "saving by each rank's own clock, or on a signal to one process",
        Expected(Kind.DIVERGED, WORLD, 1, "all_gather", "step 1", cause="rank-dependent-control-flow"),
        "one rank gathers the parameters to save while its peers train, until gloo aborts; NCCL would hang",
        {"rank": 1, "step": 1},
    ),
    Fault(
        "slow rank",
        "trainer",
        "a rank that waits 20 s, say for a service",
        Expected(Kind.IN_STEP),
        "slow is not wrong: a sleep ends by itself",
        {"rank": 1, "step": 1, "seconds": 20.0},
    ),
    Fault(
        "slow storage",
        "trainer",
        "a rank whose file system does not answer for 20 s",
        Expected(Kind.IN_STEP),
        "an operation on a file may end by itself: no hang for the first 60 s",
        {"rank": 1, "step": 1, "seconds": 20.0},
    ),
    Fault(
        "rank dies",
        "trainer",
        "the kernel kills a rank when memory runs out",
        Expected(Kind.INCOMPLETE, lost="trainer rank 1", cause="rank-died"),
        "SIGKILL leaves no last words; torchrun ends the peers",
        {"rank": 1, "step": 1},
    ),
    Fault(
        "late rank",
        "rollout",
        "one worker is slow to add its requests",
        Expected(Kind.STUCK, DP, 1, cause="offline-wave-race"),
        "the incident: the wave ends while rank 0 has more to add; rank 1 is never told of the next one",
        {"rank": 0, "generation": 2, "seconds": 6.0},
    ),
    Fault(
        "worker stopped",
        "rollout",
        "a loaded machine, a debugger, a container's freezer",
        Expected(Kind.STUCK, DP, 1, cause="offline-wave-race"),
        "the same hang with nothing patched: SIGSTOP again and again while rank 0's worker adds requests",
        outside=partial(stop_worker, rank=0, generation=2, run_s=0.001, stop_s=1.0, times=200),
    ),
    Fault(
        "broken image",
        "rollout",
        "an image that only the trainer's host can read",
        Expected(Kind.STUCK, DP, 1, cause="request-failed"),
        "rank 1's worker raises before it adds anything; rank 0's engine waits for rank 1's",
        {"rank": 1, "generation": 2},
    ),
    Fault(
        "prompt over the limit",
        "rollout",
        "`--vllm_max_model_len` shorter than the trainer's `--max_length`",
        Expected(Kind.STUCK, DP, 0, cause="request-failed"),
        "as above",
        {"rank": 0, "generation": 2, "words": 600},
    ),
    Fault(
        "slow images",
        "rollout",
        "images that a worker fetches from a slow server",
        Expected(Kind.IN_STEP),
        "rank 0's engine waits for rank 1's, whose worker still prepares its requests: slow, not wrong",
        {"rank": 1, "generation": 2, "seconds": 3.0},
    ),
    Fault(
        "engine core killed",
        "rollout",
        "the kernel kills an engine when memory runs out",
        Expected(Kind.INCOMPLETE, lost="rollout engine core 1", cause="rank-died"),
        "the engines lose their connection, the workers answer nothing, the server fails, then the trainer",
        outside=partial(kill_engine_core, rank=1, generation=2, after_s=0.1),
    ),
    Fault(
        "weight sync reaches one worker",
        "rollout",
        "a worker that fails in a call that nobody waits for",
        Expected(Kind.STUCK, "weight-sync", 0, cause="weight-sync-interrupted"),
        "trainer and rank 1 wait for rank 0 in the sync's broadcast",
        {"rank": 0, "sync": 2},
    ),
    Fault(
        "client gives up",
        "rollout",
        "a proxy's timeout between trainer and rollout",
        Expected(Kind.INCOMPLETE, lost="trainer rank 0", cause="rank-died"),
        "the trainer's request fails; the rollout answers later and is in order",
        {"rank": 0, "generation": 2, "after_s": 2.0, "late_s": 8.0},
    ),
]
