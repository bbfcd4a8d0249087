"""The incident's launch script, as a shell reads it: variables and arguments of both commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "data" / "scripts" / "launch.sh"
LOCAL = {"model", "dataset", "val_dataset", "external_plugins", "reward_funcs", "output_dir", "run_name"} | {
    "port",
    "vllm_server_port",
}
"""Arguments whose value names something of one machine or of its owner."""


def script(command: str, text: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Variables and arguments of `swift <command>` in the incident's script, or in another one's `text`."""
    text = re.sub(r"\\\n", " ", SCRIPT.read_text() if text is None else text)
    line = next(line for line in text.splitlines() if f"swift {command} " in line)
    before, _, after = line.partition(f"swift {command} ")
    words = shlex.split(re.sub(r"\$\([^)]*\)", "computed", before))
    return dict(word.split("=", 1) for word in words if "=" in word), flags(shlex.split(after.rstrip("& ")))


def flags(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            assert name not in found, f"--{name} is given twice"
            found[name] = ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


def same(ours: str, theirs: str) -> bool:
    try:
        return float(ours) == float(theirs)
    except ValueError:
        return ours == theirs
