"""Shows what a run would start, as a shell script has it: devices, both command lines and their environments.

Of the environments only what Lockstep sets: the rest is the caller's.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from lockstep.experiments.stress.scenarios import Arm
from lockstep.report.safe_text import one_line
from lockstep.run import scratch
from lockstep.run.ports import free_ports, release_ports
from lockstep.stacks.swift.commands import HOST, Command, Ports, rollout_command, trainer_command
from lockstep.stacks.swift.spec import JobSpec


def show_commands(arms: Sequence[Arm], out: Path) -> None:
    """Prints all `arms` in a line each, and the first one's commands in full."""
    spec = arms[0].spec
    print(f"# {_layout(spec)}")
    for name, instead in spec.instead.items():
        print(f"# not as in the incident on this device: {name}: {instead}")
    for arm in arms:
        fault = (
            "SIGSTOP from outside" if arm.outside else arm.spec.fault["name"] if arm.spec.fault else "none"
        )
        print(
            f"# run {arm.spec.name!r}: fault: {fault}; remedy: {arm.spec.remedy or 'none'}; "
            f"must end: {arm.expected.value}"
        )
    print(
        f"# Of {spec.name!r} (another one's with --only). "
        "Ports are chosen anew for each run, and <time> is its start."
    )
    run_dir = out / "<time>" / spec.name.replace(" ", "_")
    ports = Ports.of(free_ports(Ports.needed(spec.servers), HOST))
    release_ports(ports.all())
    private = scratch.environment(run_dir / "tmp", spec.cache)
    for command in (rollout_command(spec, ports, run_dir, {}), trainer_command(spec, ports, run_dir, {})):
        print()
        print(shell(Command(command.argv, command.env | private)))


def shell(command: Command) -> str:
    """The command as one would type it: a variable or an argument with its value on each line."""
    lines = [f"{name}={_quote(value)}" for name, value in command.env.items()]
    program, subcommand, *rest = command.argv
    lines.append(f"{_quote(program)} {subcommand}")
    for word in rest:
        if word.startswith("--"):
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {_quote(word)}"
    return " \\\n".join(lines)


def _quote(word: str) -> str:
    """For a shell, on one line: with control characters spelled as bash reads them."""
    if one_line(word) == word:
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{re.sub('[^ -~]', _spelled, plain)}'"


def _spelled(found: re.Match[str]) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(found[0]))


def _layout(spec: JobSpec) -> str:
    layout = spec.layout
    ranks = (
        f"{len(layout.trainer)} ranks of the trainer, rollout of data parallel size {layout.data_parallel}"
    )
    if spec.device == "cpu":
        return f"no GPU: {ranks}, all on the CPU"
    trainer, rollout = (",".join(map(str, gpus)) for gpus in (layout.trainer, layout.rollout))
    return (
        f"GPUs: trainer {trainer}; rollout {rollout} ({ranks}, tensor parallel size {layout.tensor_parallel})"
    )
