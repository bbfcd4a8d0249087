"""The rollout's engine: which kind, and whether its data-parallel ranks can part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lockstep.audit import cures
from lockstep.audit import sources as facts
from lockstep.audit.checks.options import refused_name
from lockstep.audit.devices import TRL_ONLINE, asynchronous, parallel
from lockstep.audit.model import Finding, Job, Process, Severity, Source
from lockstep.audit.versions import at_least
from lockstep.remedies.tried import TRIED

CHECKED = "0.11.0"
"""The vLLM release in which the race was reproduced."""
REFUSING = "0.14.0"
"""The first vLLM release that refuses offline data parallelism for dense models."""


def check(job: Job) -> Iterator[Finding]:
    for process in job.side("rollout"):
        yield from _rollout(process, job.versions)
        if not cures.apart(process, job.versions):
            yield from _no_help(process)


def _rollout(process: Process, versions: Mapping[str, str]) -> Iterator[Finding]:
    if any(refused_name(process, name) for name in ("data_parallel_size", "use_async_engine")):
        return  # it does not start
    asynch = asynchronous(process)
    tensor, data = parallel(process)
    size = "vllm_data_parallel_size" if "vllm_data_parallel_size" in process.options else "data_parallel_size"
    place = process.at(size)
    if data is None:
        value = process.option(size)
        what = f"is {value.text}" if value else f"may be set in {', '.join(process.hidden)}"
        yield Finding(
            "data-parallel-unknown",
            Severity.NOTE,
            place,
            "data parallel size cannot be told from the script",
            f"The data parallel size {what}. Above 1, with the synchronous engine, this rollout is open to "
            "the offline wave race.",
        )
        return
    if data <= 1:
        yield Finding(
            "engine", Severity.OK, place, "no data-parallel group", _describe(process, asynch, tensor, data)
        )
        return
    if asynch:
        yield Finding(
            "engine",
            Severity.OK,
            process.at("vllm_use_async_engine"),
            "asynchronous engine: vLLM's coordinator wakes idle ranks",
            f"{_describe(process, asynch, tensor, data)} Open reports about data parallelism of dense "
            "models behind the coordinator "
            "exist too; they are another cause.",
            (_server(process, online=True), facts.ENGINE_CORE, facts.ONLINE_DP),
        )
        return
    if asynch is None:
        yield Finding(
            "engine-unknown",
            Severity.WARNING,
            place,
            f"data parallel size {data}, engine kind unknown",
            "With the synchronous engine this rollout is open to the offline wave race; options that this "
            "audit cannot see decide "
            f"({', '.join(process.hidden) or 'the value is only known when the script runs'}).",
            (facts.ROLLOUT,),
        )
        return
    if cures.apart(process, versions):
        yield _engines_apart(process, tensor, data, versions["ms-swift"])
        return
    if cured := cures.in_place(process):
        yield Finding(
            "engine",
            Severity.OK,
            process.at(next(iter([*cured.change.rollout, *cured.change.rollout_env]), "external_plugins")),
            f"cured: {cured.name}",
            f"{_describe(process, asynch, tensor, data)} Price: {cured.gives_up}.",
            (facts.ROLLOUT,),
        )
        return
    yield _race(process, tensor, data, versions.get("vllm"))


def _engines_apart(process: Process, tensor: int | None, data: int, swift: str) -> Finding:
    cured = cures.in_place(process)
    if cured and cured.id == "independent-ranks":
        return Finding(
            "cure-in-the-way",
            Severity.HAZARD,
            process.at("external_plugins"),
            f"ms-swift {swift} makes each data-parallel rank an engine apart: the plugin refuses to start",
            f"From {cures.APART} on ms-swift does what independent_ranks.py is for, and the plugin does not "
            "find the ranks that it would take apart.",
            advice="Drop independent_ranks.py from --external_plugins.",
        )
    return Finding(
        "engine",
        Severity.NOTE if process.flag("vllm_enable_expert_parallel") else Severity.OK,
        process.at("vllm_data_parallel_size"),
        f"ms-swift {swift} makes each data-parallel rank an engine apart",
        f"{_describe(process, False, tensor, data)} From {cures.APART} on vLLM knows nothing of the ranks, "
        "so they do not step together. Measured with a dense model and vLLM 0.11.0 (docs/bisect.md), not "
        "with expert parallelism.",
    )


def _race(process: Process, tensor: int | None, data: int, vllm: str | None) -> Finding:
    size = "vllm_data_parallel_size" if "vllm_data_parallel_size" in process.options else "data_parallel_size"
    experts = process.flag("vllm_enable_expert_parallel")
    if vllm and at_least(vllm, REFUSING) and not experts:
        return Finding(
            "offline-dp-refused",
            Severity.HAZARD,
            process.at(size),
            f"vLLM {vllm} refuses data parallel size {data} with the synchronous engine on a dense model",
            f"From {REFUSING} on, vLLM raises at start-up when a dense model runs in offline data-parallel "
            "mode, which is what this "
            "rollout does unless the installed ms-swift or trl starts each rank as an engine of its own. "
            "For a mixture-of-experts model "
            "the offline wave race below that release is still to be reckoned with.",
            (facts.REFUSES_OFFLINE_DP, _server(process)),
            cures.advice(process),
        )
    about = f"vLLM {vllm}" if vllm else "vLLM below 0.14 (the release is not known)"
    checked = "" if vllm == CHECKED else f" Checked with vLLM {CHECKED} and ms-swift 3.10.3."
    if process.program.startswith("trl"):
        checked = (
            f" Reproduced with ms-swift 3.10.3; that trl 0.24.0 does the same is read from its code. From "
            f"{TRL_ONLINE} on trl starts vLLM's own server, which has a coordinator.{checked}"
        )
    return Finding(
        "offline-wave-race",
        Severity.HAZARD,
        process.at(size),
        f"synchronous engine with data parallel size {data} on {about}: offline wave race",
        f"Each of the {data} data-parallel ranks is an engine of its own without vLLM's coordinator, in "
        "lockstep with the others. Every 32 "
        "steps they agree whether anyone has unfinished requests. If all requests so far added are done "
        "while one worker is still adding "
        "its share, the wave ends everywhere; the late worker's next request begins a new wave on its rank "
        "alone and waits in an "
        "all-reduce that the others never join. The server does not answer, the trainer waits for the "
        "server, and after 600 s the NCCL "
        "watchdog ends it. Short completions, many requests per rank and a busy CPU make it "
        f"likelier.{checked}",
        (_server(process), facts.ENGINE_CORE, facts.FORWARD_CONTEXT),
        cures.advice(process),
    )


def _server(process: Process, *, online: bool = False) -> Source:
    if online and process.program.startswith("trl"):
        return facts.TRL_ONLINE
    return facts.TRL_SERVER if process.program.startswith("trl") else facts.ROLLOUT


def _describe(process: Process, asynch: bool | None, tensor: int | None, data: int) -> str:
    kind = {True: "asynchronous", False: "synchronous", None: "unknown"}[asynch]
    sizes = f"tensor parallel size {'?' if tensor is None else tensor}, data parallel size {data}"
    return f"Engine kind: {kind}; {sizes}."


def _no_help(process: Process) -> Iterator[Finding]:
    """Settings that people try against this hang."""
    data = parallel(process)[1]
    if asynchronous(process) is not False or data is None or data < 2 or cures.in_place(process):
        return
    for remedy in TRIED:
        change = remedy.change
        if remedy.helps or not cures.has_settings(process, change.rollout, change.rollout_env):
            continue
        name = next(iter([*change.rollout, *change.rollout_env]))
        yield Finding(
            "no-help",
            Severity.NOTE,
            process.at(name),
            f"{remedy.how} does not help against the offline wave race",
            f"It is among the settings that people try (docs/remedies.md). Its price: {remedy.gives_up}. "
            "The ranks still meet in an all-reduce at every step, and the absent one stays absent.",
            (facts.FORWARD_CONTEXT,),
        )
