"""How the catalogue's remedies of the offline wave race are written into a script; order as there."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.audit.model import Process
from lockstep.remedies.catalogue import REMEDIES, Remedy

CAUSE = "offline-wave-race"
PLUGIN_FILE = "independent_ranks.py"


@dataclass(frozen=True, slots=True)
class Cure:
    """A remedy and its setting on the rollout's command: an option or a variable, with its value."""

    id: str
    remedy: Remedy
    option: str = ""
    variable: str = ""
    value: str = ""


_SETTINGS = {
    "independent ranks": ("independent-ranks", "external_plugins", "", PLUGIN_FILE),
    "rollout without data parallelism": ("tensor-parallel", "vllm_tensor_parallel_size", "", ""),
    "asynchronous engine": ("async-engine", "vllm_use_async_engine", "", "true"),
    "engine in the worker's process": ("in-process-engine", "", "VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
}
"""By the remedy's name in the catalogue: the id to ask for it by, option, variable, value."""


def _cure(remedy: Remedy) -> Cure:
    name, option, variable, value = _SETTINGS[remedy.name]
    return Cure(name, remedy, option, variable, value)


CURES = tuple(_cure(remedy) for remedy in REMEDIES[CAUSE] if remedy.name in _SETTINGS)
_BY_ID = {cure.id: cure for cure in CURES}


def choose(name: str | None, process: Process) -> Cure:
    """The cure of an id, or the first that fits the process. Raises KeyError for an unknown id."""
    if name is not None:
        return _BY_ID[name]
    return next(cure for cure in CURES if _fits(cure, process))


def _fits(cure: Cure, process: Process) -> bool:
    # A layer's experts are spread over the data-parallel ranks then: these must step together.
    spread = process.flag("vllm_enable_expert_parallel") is True
    return not spread or cure.id in ("async-engine", "in-process-engine")


def in_place(process: Process) -> Cure | None:
    """The cure that a rollout of ms-swift already has."""
    if process.program.startswith("trl"):
        return None
    plugins = process.options.get("external_plugins")
    if plugins and any(word.text.rsplit("/", 1)[-1] == PLUGIN_FILE for word in plugins.values):
        return _BY_ID["independent-ranks"]
    single = process.env("VLLM_ENABLE_V1_MULTIPROCESSING")
    return _BY_ID["in-process-engine"] if single is not None and single.number() == 0 else None


def advice(process: Process) -> str:
    """What to do about the race, best first."""
    if process.program.startswith("trl"):
        return "Use --tensor_parallel_size in place of --data_parallel_size, or one server per GPU."
    fitting = [cure.remedy for cure in CURES if _fits(cure, process)]
    return "; else ".join(f"{remedy.name}: {remedy.how}" for remedy in fitting) + "."
