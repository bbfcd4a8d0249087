"""Shows what a run would start, as a shell script has it: devices, both command lines and their environments.

Of the environments only what Lockstep sets: the rest is the caller's.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from lockstep.report.safe_text import one_line
from lockstep.run import scratch
from lockstep.run.ports import free_ports, release_ports
from lockstep.stacks.base import HOST, Arm, Command


def show_commands(arms: Sequence[Arm], out: Path) -> None:
    """Prints all `arms` in a line each, and the first one's commands in full."""
    spec = arms[0].spec
    print(f"# {spec.describe()}")
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
    ports = free_ports(spec.ports_needed(), HOST)
    release_ports(ports)
    private = scratch.environment(run_dir / "tmp", spec.cache, spec.stack.folders)
    launch = spec.launch(ports, run_dir, {})
    for command in (*(service.command for service in launch.services), launch.main):
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
