"""Ports: whether both sides mean the same, and which can collide."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.audit import sources as facts
from lockstep.audit.model import Finding, Job, Process, Severity, Value, literal

WEIGHT_SYNC = 51216
"""Port of ms-swift's first weight-sync group; the second server's is one more, and so on."""
LOCAL_HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "::1")


def serves_on(process: Process) -> Value | None:
    """The port a rollout or server is told to listen on; None where that cannot be seen."""
    given = process.option("port")
    return given if given is not None or process.hidden else literal("8000")


def connects_to(trainer: Process) -> list[Value]:
    """The ports at which a trainer expects its servers; empty where it has none."""
    if "vllm_server_host" not in trainer.options:
        return []
    given = trainer.options.get("vllm_server_port")
    if given is None:
        return [literal("8000")] if not trainer.hidden else []
    return [word.value for word in given.values]


def check(job: Job) -> Iterator[Finding]:
    for trainer in job.side("trainer"):
        yield from _weight_sync(trainer, job)
        yield from _agree(trainer, job)
    yield from _clashes(job)
    for process in job.side("rollout"):
        yield from _picked_early(process)


def _servers(trainer: Process) -> int:
    urls = trainer.options.get("vllm_server_base_url")
    hosts = trainer.options.get("vllm_server_host")
    return len(urls.values) if urls else len(hosts.values) if hosts else 0


def _weight_sync(trainer: Process, job: Job) -> Iterator[Finding]:
    count = _servers(trainer)
    if not count:
        return
    last = WEIGHT_SYNC + count - 1
    which = f"port {WEIGHT_SYNC}" if count == 1 else f"ports {WEIGHT_SYNC} to {last}"
    swift = job.versions.get("ms-swift")
    about = f"ms-swift {swift}" if swift else "ms-swift 3.10.3 (the release of this job is not known)"
    place = trainer.at(
        "vllm_server_host" if "vllm_server_host" in trainer.options else "vllm_server_base_url"
    )
    yield Finding(
        "weight-sync-port-fixed",
        Severity.WARNING,
        place,
        f"the weight-sync group always uses {which}",
        f"In {about} the trainer's client takes group_ports={WEIGHT_SYNC} and there is no argument for it. "
        "Two jobs on one host, or one "
        "that follows another whose processes are still there, meet at this port.",
        (facts.CLIENT, facts.RLHF_ARGUMENTS),
        "One such job per host; see that none of an earlier job's processes is left before a start.",
    )


def _agree(trainer: Process, job: Job) -> Iterator[Finding]:
    wanted = connects_to(trainer)
    rollouts = job.side("rollout")
    if not wanted or not rollouts:
        return
    offered = [port for rollout in rollouts if (port := serves_on(rollout)) is not None]
    place = trainer.at("vllm_server_port")
    if len(offered) < len(rollouts):
        return
    missing = [port for port in wanted if not any(port.same(other) for other in offered)]
    if not missing:
        shown = ", ".join(port.text[:60] for port in wanted)
        yield Finding(
            "ports-agree",
            Severity.OK,
            place,
            "trainer and server mean the same port",
            f"Both sides use {shown}.",
        )
        return
    if all(port.known for port in missing + offered):
        yield Finding(
            "port-mismatch",
            Severity.HAZARD,
            place,
            f"no server listens on port {', '.join(p.text for p in missing)}",
            f"The servers of these scripts are told ports {', '.join(p.text for p in offered)}. The trainer "
            "gives up after "
            "--vllm_server_timeout (240 s by default).",
            (facts.CLIENT, facts.DEPLOY_ARGUMENTS),
            "Give both sides the same port.",
        )
    else:
        yield Finding(
            "port-unknown",
            Severity.NOTE,
            place,
            "whether trainer and server mean the same port cannot be told",
            f"The trainer connects to {', '.join(p.text[:60] for p in missing)}; the servers get "
            f"{', '.join(p.text[:60] for p in offered)}.",
        )


def _clashes(job: Job) -> Iterator[Finding]:
    taken: dict[tuple[str, int], str] = {}
    for trainer in job.side("trainer"):
        for i in range(_servers(trainer)):
            taken["", WEIGHT_SYNC + i] = "the weight-sync group"
    for process in sorted(job.processes, key=lambda p: p.side):
        own: list[tuple[str, Value | None]] = []
        if process.side in ("rollout", "server"):
            own.append(("port", serves_on(process)))
        elif (
            process.side == "trainer"
            and process.launcher is None
            and process.env("NPROC_PER_NODE") is not None
        ):
            own.append(("MASTER_PORT", process.env("MASTER_PORT")))
        for name, value in own:
            number = value.number() if value else None
            if number is None or number == 0:
                continue
            key = (process.command.machine, number)
            other = taken.setdefault(key, process.label)
            if other != process.label:
                yield Finding(
                    "port-clash",
                    Severity.HAZARD,
                    process.at(name),
                    f"port {number} is used twice",
                    f"{process.label} and {other} both want it. A swift server whose port is taken moves to "
                    "the next free one without a "
                    "word that its trainer would hear.",
                    (facts.FREE_PORT, facts.DEPLOY_ARGUMENTS),
                    "Give each its own port.",
                )


def _picked_early(process: Process) -> Iterator[Finding]:
    port = serves_on(process)
    if port is None or port.known or "$(" not in port.text:
        return
    yield Finding(
        "port-picked-early",
        Severity.NOTE,
        process.at("port"),
        "the server's port is picked before it is used",
        f"The port is the result of {port.text[:100]}. If another program takes it meanwhile, swift moves "
        "the server to the next free "
        "port and the trainer looks for it at the old one. Rare, and it would fail at start-up, not hang "
        "later.",
        (facts.DEPLOY_ARGUMENTS, facts.FREE_PORT),
    )
