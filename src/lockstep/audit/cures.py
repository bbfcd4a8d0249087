"""The catalogue's remedies of the offline wave race, as what they mean for a rollout's command line."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.audit.model import Process
from lockstep.audit.versions import at_least
from lockstep.causes import CAUSES
from lockstep.remedies.model import Remedy, Tried

CAUSE = "offline-wave-race"
CURES: dict[str, Tried] = {
    remedy.id: remedy for remedy in CAUSES[CAUSE].remedies if isinstance(remedy, Tried)
}
"""By the id to ask for it by; in the order in which to try them."""
_OTHERS = tuple(remedy for remedy in CAUSES[CAUSE].remedies if not isinstance(remedy, Tried))
"""Those that no command line can have."""
APART = next(remedy.since[1] for remedy in _OTHERS if remedy.since)
"""The first ms-swift release whose data-parallel ranks are engines apart: with vLLM 0.11.0 it survives the
late rank, 4.2.0 hangs (docs/bisect.md). The change is commit 9f27c8e17, pull request 9295."""


def choose(name: str | None, process: Process) -> Tried:
    """The remedy of an id, or the first that fits the process. Raises KeyError for an unknown id."""
    return (
        CURES[name]
        if name is not None
        else next(remedy for remedy in CURES.values() if _fits(remedy, process))
    )


def _fits(remedy: Remedy, process: Process) -> bool:
    return not (process.flag("vllm_enable_expert_parallel") is True and not remedy.experts)


def apart(process: Process, versions: Mapping[str, str]) -> bool:
    """Whether the rollout's ms-swift makes each data-parallel rank an engine apart, by itself."""
    swift = versions.get("ms-swift")
    return swift is not None and not process.program.startswith("trl") and bool(at_least(swift, APART))


def in_place(process: Process) -> Tried | None:
    """The remedy that a rollout of ms-swift already has, of those that leave its sizes as they are."""
    if process.program.startswith("trl"):
        return None
    for remedy in CURES.values():
        change = remedy.change
        if remedy.file and _has_plugin(process, remedy.file):
            return remedy
        if has_settings(process, change.rollout, change.rollout_env):
            return remedy
    return None


def has_settings(
    process: Process, options: Mapping[str, str | int | float | bool], variables: Mapping[str, str]
) -> bool:
    """Whether a process is started with all of these; False where there are none."""
    given = [(process.option(name), value) for name, value in options.items()]
    given += [(process.env(name), value) for name, value in variables.items()]
    return bool(given) and all(v is not None and v.text.lower() == str(value).lower() for v, value in given)


def _has_plugin(process: Process, file: str) -> bool:
    plugins = process.options.get("external_plugins")
    return plugins is not None and any(word.text.rsplit("/", 1)[-1] == file for word in plugins.values)


def advice(process: Process) -> str:
    """What to do about the race, best first."""
    if process.program.startswith("trl"):
        return "Use --tensor_parallel_size in place of --data_parallel_size, or one server per GPU."
    fitting = [remedy for remedy in (*CURES.values(), *_OTHERS) if _fits(remedy, process)]
    return "; else ".join(f"{remedy.name}: {remedy.advice}" for remedy in fitting) + "."
