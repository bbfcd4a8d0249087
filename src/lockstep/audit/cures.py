"""How the audit writes the cures of the offline wave race into a script, in the order in which they are
offered."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.audit.model import Process

PLUGIN_FILE = "independent_ranks.py"


@dataclass(frozen=True, slots=True)
class Cure:
    """A setting of the rollout: an option with its value, or a variable with its value."""

    id: str
    title: str
    why: str
    option: str = ""
    variable: str = ""
    value: str = ""


CURES = (
    Cure(
        "independent-ranks",
        f"--external_plugins {PLUGIN_FILE}",
        "Each data-parallel rank is an engine of its own: there is no group in which to wait. For dense "
        "models.",
        option="external_plugins",
        value=PLUGIN_FILE,
    ),
    Cure(
        "async-engine",
        "--vllm_use_async_engine true",
        "All ranks stand behind vLLM's coordinator, which wakes idle ones.",
        option="vllm_use_async_engine",
        value="true",
    ),
    Cure(
        "tensor-parallel",
        "tensor parallel in place of data parallel",
        "Without data parallelism there is no data-parallel group.",
        option="vllm_tensor_parallel_size",
    ),
    Cure(
        "in-process-engine",
        "VLLM_ENABLE_V1_MULTIPROCESSING=0",
        "The engine only steps once all requests of its worker are in.",
        variable="VLLM_ENABLE_V1_MULTIPROCESSING",
        value="0",
    ),
)


def choose(name: str | None, process: Process) -> Cure:
    """The cure of a name, or the first that fits the process. Raises KeyError for an unknown name."""
    if name is not None:
        return {cure.id: cure for cure in CURES}[name]
    return CURES[1] if process.flag("vllm_enable_expert_parallel") else CURES[0]


def in_place(process: Process) -> Cure | None:
    """The cure that a rollout of ms-swift already has."""
    if process.program.startswith("trl"):
        return None
    plugins = process.options.get("external_plugins")
    if plugins and any(word.text.rsplit("/", 1)[-1] == PLUGIN_FILE for word in plugins.values):
        return CURES[0]
    single = process.env("VLLM_ENABLE_V1_MULTIPROCESSING")
    return CURES[3] if single is not None and single.number() == 0 else None


def advice(process: Process) -> str:
    """What to do about the race, best first."""
    if process.program.startswith("trl"):
        return "Use --tensor_parallel_size in place of --data_parallel_size, or one server per GPU."
    first = choose(None, process)
    rest = [
        cure.title for cure in CURES if cure is not first and not (cure is CURES[0] and first is CURES[1])
    ]
    return f"{first.title} ({first.why[0].lower()}{first.why[1:].rstrip('.')}); else {'; or '.join(rest)}."
