"""Save and eval: at which steps they fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.audit.model import Finding, Job, Process, Severity


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Steps between two saves and two evals; None for never, by epoch, or unknown."""

    save: int | None
    eval: int | None


def boundaries(trainer: Process) -> Boundaries:
    """Where a trainer saves and evaluates, with the defaults of ms-swift 3.10.3 and transformers (every 500
    steps, eval as save)."""
    save_kind = trainer.option("save_strategy")
    save = trainer.number("save_steps", 500) if save_kind is None or save_kind.text == "steps" else None
    kind = trainer.option("eval_strategy") or save_kind
    by_step = (kind is None or kind.text == "steps") and evaluates(trainer)
    every = trainer.number("eval_steps", save) if by_step else None
    return Boundaries(save if save and save > 0 else None, every if every and every > 0 else None)


def evaluates(trainer: Process) -> bool:
    """Whether a trainer evaluates: ms-swift switches that off where there is nothing to do it on."""
    kind = trainer.option("eval_strategy") or trainer.option("save_strategy")
    if kind is not None and kind.text == "no":
        return False
    ratio = trainer.option("split_dataset_ratio")
    split = ratio is not None and ratio.text.strip("0.") != ""
    return split or bool({"val_dataset", "eval_dataset"} & trainer.options.keys())


def check(job: Job, step: int | None) -> Iterator[Finding]:
    for trainer in job.side("trainer"):
        if trainer.hidden or trainer.program.startswith("megatron"):
            continue
        found = boundaries(trainer)
        place = trainer.at("eval_steps" if "eval_steps" in trainer.options else "save_steps")
        kinds = [(name, every) for name, every in (("save", found.save), ("eval", found.eval)) if every]
        if not kinds:
            continue
        shown = " and ".join(f"{name} every {every} steps" for name, every in kinds)
        if step is None:
            yield Finding(
                "boundaries",
                Severity.OK,
                place,
                shown,
                "A hang at any other step has neither to do with save nor eval. (--step N looks at the step "
                "of a hang.)",
            )
            continue
        hit = [name for name, every in kinds if step > 0 and step % every == 0]
        near = ", ".join(
            f"{step} = {step // every} x {every} + {step % every}"
            for every in dict.fromkeys(e for _, e in kinds)
        )
        if hit:
            yield Finding(
                "step-at-boundary",
                Severity.NOTE,
                place,
                f"step {step} is a step of {' and '.join(hit)}",
                f"{shown}; {near}. The boundary may be involved.",
            )
        else:
            yield Finding(
                "boundaries",
                Severity.OK,
                place,
                f"step {step} is neither a save nor an eval step",
                f"{shown}; {near}. Neither boundary is involved.",
            )
