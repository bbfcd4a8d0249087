"""Batch arithmetic of GRPO: how many completions a generation asks for, and how they are shared out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.audit import sources as facts
from lockstep.audit.checks.boundaries import evaluates
from lockstep.audit.devices import asynchronous, parallel, world_size
from lockstep.audit.model import Finding, Job, Process, Severity


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Counts of one trainer; None where the script does not tell. Completions, except for `world_size`
    (ranks)."""

    world_size: int | None
    per_device_train_batch_size: int | None
    steps_per_generation: int | None
    completions_per_generation: int | None
    num_generations: int | None
    prompts_per_generation: int | None
    servers: int
    per_server: int | None
    per_dp_rank: int | None
    eval_batch: int | None


def is_grpo(process: Process) -> bool:
    kind = process.option("rlhf_type")
    # Megatron counts its batches in other options.
    return (
        process.side == "trainer"
        and not process.program.startswith("megatron")
        and kind is not None
        and kind.text == "grpo"
    )


def arithmetic(trainer: Process, job: Job) -> Arithmetic:
    """The counts of a GRPO trainer, with ms-swift's defaults where an option is not given."""
    world = world_size(trainer)
    batch = trainer.number("per_device_train_batch_size", 1)
    accumulation = trainer.number("gradient_accumulation_steps", 1)
    steps = (
        trainer.number("steps_per_generation", accumulation)
        if "steps_per_generation" in trainer.options
        else accumulation
    )
    total = _product(world, batch, steps)
    if "generation_batch_size" in trainer.options:
        total = trainer.number("generation_batch_size", None)
        step_size = _product(world, batch)
        steps = total // step_size if total is not None and step_size else None
    generations = trainer.number("num_generations", 8)
    rollouts = job.side("rollout")
    hosts = trainer.options.get("vllm_server_host") or trainer.options.get("vllm_server_base_url")
    servers = len(hosts.values) if hosts else 0
    per_server = -(-total // servers) if total is not None and servers else None
    data = parallel(rollouts[0])[1] if rollouts and not asynchronous(rollouts[0]) else None
    return Arithmetic(
        world_size=world,
        per_device_train_batch_size=batch,
        steps_per_generation=steps,
        completions_per_generation=total,
        num_generations=generations,
        prompts_per_generation=total // generations
        if total is not None and generations and generations > 0
        else None,
        servers=servers,
        per_server=per_server,
        per_dp_rank=-(-per_server // data) if per_server is not None and data and data > 0 else None,
        eval_batch=_product(world, trainer.number("per_device_eval_batch_size", 1)),
    )


def _product(*numbers: int | None) -> int | None:
    result = 1
    for number in numbers:
        if number is None:
            return None
        result *= number
    return result


def check(job: Job) -> Iterator[Finding]:
    for trainer in job.side("trainer"):
        if is_grpo(trainer):
            yield from _grpo(trainer, job)
            yield from _colocated(trainer)


def _grpo(trainer: Process, job: Job) -> Iterator[Finding]:
    sums = arithmetic(trainer, job)
    total, generations = sums.completions_per_generation, sums.num_generations
    place = trainer.at("num_generations")
    if {"steps_per_generation", "generation_batch_size"} <= trainer.options.keys():
        yield Finding(
            "batch-options-exclude",
            Severity.HAZARD,
            trainer.at("generation_batch_size"),
            "steps_per_generation and generation_batch_size exclude each other",
            "The trainer refuses to start with both.",
            (facts.GRPO_CONFIG,),
        )
    if generations is not None and generations < 2:
        yield Finding(
            "num-generations-low",
            Severity.HAZARD,
            place,
            f"num_generations is {generations}",
            "GRPO compares completions of one prompt: it refuses fewer than 2.",
            (facts.BATCH_ARGUMENTS,),
        )
        return
    if total is None or generations is None:
        return
    ranks, batch, steps = sums.world_size, sums.per_device_train_batch_size, sums.steps_per_generation
    formula = f"{ranks} ranks x {batch} x {steps} = {total}"
    step = _product(sums.world_size, sums.per_device_train_batch_size)
    if "generation_batch_size" in trainer.options and step and total % step:
        yield Finding(
            "generation-batch-uneven",
            Severity.HAZARD,
            trainer.at("generation_batch_size"),
            f"generation_batch_size {total} is no multiple of {step}",
            f"It must be a multiple of ranks x per_device_train_batch_size ({step}): the trainer refuses to "
            "start.",
            (facts.BATCH_ARGUMENTS,),
        )
        return
    if total % generations:
        yield Finding(
            "batch-not-divisible",
            Severity.HAZARD,
            place,
            f"num_generations {generations} does not divide the {total} completions of a generation",
            f"{formula} completions; the trainer refuses to start.",
            (facts.BATCH_ARGUMENTS,),
        )
    else:
        shares = f" per server {sums.per_server}," if sums.per_server is not None else ""
        shares += f" per data-parallel rank {sums.per_dp_rank}," if sums.per_dp_rank is not None else ""
        yield Finding(
            "batch-divides",
            Severity.OK,
            place,
            f"num_generations {generations} divides the {total} completions of a generation",
            f"{formula} completions:{shares} {total // generations} prompts of {generations} each.",
            (facts.BATCH_ARGUMENTS, facts.CLIENT, facts.ROLLOUT),
        )
    yield from _evaluation(trainer, sums)


def _evaluation(trainer: Process, sums: Arithmetic) -> Iterator[Finding]:
    if not evaluates(trainer):
        return
    if sums.eval_batch is not None and sums.num_generations and sums.eval_batch % sums.num_generations:
        yield Finding(
            "eval-batch-not-divisible",
            Severity.HAZARD,
            trainer.at("per_device_eval_batch_size"),
            f"num_generations {sums.num_generations} does not divide the {sums.eval_batch} completions of "
            "an eval step",
            f"{sums.world_size} ranks x per_device_eval_batch_size = {sums.eval_batch}; with evaluation on, "
            "the trainer refuses to start.",
            (facts.BATCH_ARGUMENTS,),
        )


def _colocated(trainer: Process) -> Iterator[Finding]:
    if (
        trainer.hidden
        or not trainer.flag("use_vllm")
        or {"vllm_server_host", "vllm_server_base_url"} & trainer.options.keys()
    ):
        return
    tensor, world = trainer.number("vllm_tensor_parallel_size", 1), world_size(trainer)
    if tensor and world and world % tensor:
        yield Finding(
            "colocate-uneven",
            Severity.HAZARD,
            trainer.at("vllm_tensor_parallel_size"),
            f"vllm_tensor_parallel_size {tensor} does not divide {world} ranks",
            "In colocate mode the trainer's ranks share engines; ms-swift refuses.",
            (facts.MIXIN,),
        )
