"""How the trainer waits for the server, and whether the script lets both run."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.audit import sources as facts
from lockstep.audit.model import Finding, Job, Process, Severity, Wait

_SHORT = 15
"""Seconds below which a sleep is a pause, not a wait for a server."""


def sleeps_for_server(job: Job) -> list[tuple[Wait, list[Process], Process]]:
    """Each fixed sleep between a server and its trainer with no look at the server in between: (sleep,
    servers, trainer)."""
    found: list[tuple[Wait, list[Process], Process]] = []
    for trainer in [*job.side("trainer"), *job.unread]:
        if not _meets_server(trainer):
            continue
        path = trainer.place.path
        servers = [p for p in job.side("rollout") if p.order < trainer.order and p.place.path == path]
        if not servers:
            continue
        between = [
            w
            for w in job.waits
            if servers[0].order < w.order < trainer.order and w.command.place.path == path
        ]
        if any(wait.kind == "check" for wait in between):
            continue
        found.extend(
            (w, servers, trainer)
            for w in between
            if w.kind == "sleep" and (w.seconds is None or w.seconds >= _SHORT)
        )
    return found


def _meets_server(process: Process) -> bool:
    if {"vllm_server_host", "vllm_server_base_url"} & process.options.keys():
        return True
    mode = process.option("vllm_mode")
    return process.side == "unread" and mode is not None and mode.text == "server"


def check(job: Job) -> Iterator[Finding]:
    seen = False
    for wait, _, trainer in sleeps_for_server(job):
        seen = True
        given = trainer.option("vllm_server_timeout")
        after = f"{given.text} s" if given else "240 s"
        yield Finding(
            "sleep-instead-of-health-check",
            Severity.WARNING,
            wait.command.place,
            f"sleep {wait.command.words[1].text} instead of a health check",
            "A fixed sleep neither sees a server that has died nor waits for one that needs longer. GET "
            "/health/ answers once every "
            f"worker's engine is ready. (The trainer asks for it too, for {after}, but only after the "
            "sleep, and while it holds its GPUs.)",
            (facts.ROLLOUT, facts.CLIENT),
            "Wait until /health/ answers, and stop if the server has ended.",
        )
    for trainer in job.side("trainer"):
        yield from _foreground(trainer, job)
        yield from _no_server(trainer, job)
        waited = [w for w in job.waits if w.kind == "check" and w.order < trainer.order]
        if waited and not seen and job.side("rollout"):
            yield Finding(
                "health-check",
                Severity.OK,
                waited[-1].command.place,
                "the script looks whether the server is up",
                "It waits for an answer instead of a fixed time.",
            )


def _foreground(trainer: Process, job: Job) -> Iterator[Finding]:
    for server in job.side("rollout"):
        same = server.place.path == trainer.place.path and server.command.machine == trainer.command.machine
        if (
            same
            and server.order < trainer.order
            and not server.command.background
            and not server.command.wrapped
        ):
            yield Finding(
                "server-in-foreground",
                Severity.WARNING,
                server.place,
                "as one script, the trainer never starts: the server runs in the foreground",
                f"The shell waits here until {server.program} ends, and only then comes to line "
                f"{trainer.place.line}. (Right where the two are typed in two terminals.)",
                (facts.BASH,),
                "End the command with &.",
            )


def _no_server(trainer: Process, job: Job) -> Iterator[Finding]:
    if trainer.hidden or "rlhf" not in trainer.program:
        return
    remote = "vllm_server_host" in trainer.options or "vllm_server_base_url" in trainer.options
    mode = trainer.option("vllm_mode")
    if (
        not remote
        and trainer.flag("use_vllm")
        and (job.side("rollout") or (mode is not None and mode.text == "server"))
    ):
        yield Finding(
            "server-unused",
            Severity.HAZARD,
            trainer.at("vllm_mode"),
            "the trainer does not use the rollout server",
            "Without --vllm_server_host or --vllm_server_base_url ms-swift sets vllm_mode to colocate, with "
            "a warning only: each trainer "
            "rank makes an engine on its own GPU.",
            (facts.RLHF_ARGUMENTS,),
            "Give the trainer --vllm_server_host and --vllm_server_port.",
        )
    if remote and not job.side("rollout"):
        yield Finding(
            "server-elsewhere",
            Severity.NOTE,
            trainer.at("vllm_server_host"),
            "the rollout server is started elsewhere",
            "Half of this job's settings are in another script: name that one too.",
        )
