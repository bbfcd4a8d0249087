"""Which commands are processes of the job, and which of them wait for another."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lockstep.audit.model import Command, Option, Process, Wait, Word
from lockstep.audit.shell.wrappers import PYTHON, name_of, without_start

_SIDES = {"rollout": "rollout", "rlhf": "trainer", "sft": "trainer", "pt": "trainer", "deploy": "server"}
_SCRIPT = re.compile(r"(?:^|/)swift/cli/(\w+)\.py\Z")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_OTHER = frozenset(("llamafactory-cli", "axolotl", "xtuner", "colossalai", "horovodrun"))
_TRAINERS_OF_TRL = frozenset(("grpo", "rloo", "dpo", "sft", "kto", "reward"))
_TOOLS = frozenset(
    (
        "pip",
        "venv",
        "json",
        "http",
        "compileall",
        "pytest",
        "ensurepip",
        "timeit",
        "zipfile",
        "site",
        "sysconfig",
    )
)
"""Modules that people run in launch scripts and that start no job."""
_PROBES = frozenset(
    (
        "curl",
        "wget",
        "nc",
        "ncat",
        "http",
        "wait-for-it",
        "wait-for-it.sh",
        "wait-for",
        "dockerize",
        "grpcurl",
    )
)
_OPTION = re.compile(r"--?[A-Za-z_][\w-]*(?:=|\Z)")


def options_of(words: Iterable[Word]) -> tuple[dict[str, Option], list[Word], tuple[str, ...]]:
    """Options by name, the words before the first of them, and the words that may hide more of both.

    As argparse reads them for ms-swift: `--name value`, `--name=value`, several values after one name, dashes
    or underscores, the last
    mention counts.
    """
    positional: list[Word] = []
    hidden: list[str] = []
    current = ""
    values: dict[str, list[Word]] = {}
    heads: dict[str, Word] = {}
    for word in words:
        text = word.text
        first = word.value.parts[0] if word.value.parts else None
        if first is not None and first.known and _OPTION.match(text) and not re.match(r"-\d", text):
            name, equals, _ = text.partition("=")
            current = name.lstrip("-").replace("-", "_")
            heads.pop(current, None)
            heads[current] = word
            values[current] = [_after_equals(word)] if equals else []
        elif current:
            # An unknown after a complete option may be a whole list of further options.
            if values[current] and _may_be_many(word):
                hidden.append(text)
                continue
            values[current].append(word)
        else:
            positional.append(word)
            if _may_be_many(word):
                hidden.append(text)
    options = {name: Option(name, tuple(values[name]), word) for name, word in heads.items()}
    if "config" in options and options["config"].values:
        hidden.append(options["config"].values[0].text)
    hidden.extend(word.text for word in positional if word.text.endswith(".json"))
    return options, positional, tuple(hidden)


def _may_be_many(word: Word) -> bool:
    first = word.value.parts[0] if word.value.parts else None
    if first is None or first.known:
        return False
    return not word.quote or first.text in ("$@", "${@}") or first.text.endswith("[@]}")


def _after_equals(word: Word) -> Word:
    count = word.text.index("=") + 1
    return Word(without_start(word.value, count), word.place, word.start, word.end, word.quote)


def process_of(command: Command, order: int) -> Process | None:
    """The process of the job that a command is; None for any other command."""
    words = command.words
    name = name_of(words[0])
    if name in ("swift", "megatron") and len(words) > 1:
        sub = words[1].text.replace("_", "-")
        side = _SIDES.get(sub)
        return _make(command, side, f"{name} {sub}", words[2:], words[1], order) if side else None
    if name == "trl" and len(words) > 1 and words[1].text == "vllm-serve":
        return _make(command, "rollout", "trl vllm-serve", words[2:], words[1], order)
    if name == "vllm" and len(words) > 1 and words[1].text == "serve":
        return _make(command, "server", "vllm serve", words[2:], words[1], order)
    if PYTHON.match(name):
        return _python(command, order)
    if name in ("torchrun", "accelerate", "deepspeed"):
        start = 2 if name == "accelerate" else 1
        return _launched(command, name, start, order)
    return None


def unread_of(command: Command, order: int) -> Process | None:
    """A program of Python or of a launcher that `process_of` does not know; None for what starts none."""
    words = command.words
    name = name_of(words[0])
    if (name == "trl" and len(words) > 1 and words[1].text in _TRAINERS_OF_TRL) or name in _OTHER:
        head = words[min(1, len(words) - 1)]
        return _make(command, "unread", f"{name} {head.text[:80]}", words[2:], head, order)
    python = PYTHON.match(name) is not None
    if not python and name not in ("torchrun", "accelerate", "deepspeed"):
        return None
    if name == "accelerate" and (len(words) < 2 or words[1].text != "launch"):
        return None
    launched = False
    for i in range(1, len(words)):
        text = words[i].text
        if python and text in ("-c", "-"):
            return None
        module = text in ("-m", "--module") and i + 1 < len(words)
        if module and python and words[i + 1].text in _LAUNCHERS:
            launched = True
            continue
        if module and python and words[i + 1].text.split(".")[0] in _TOOLS:
            return None
        if not module and not text.endswith(".py"):
            continue
        head = words[i + 1] if module else words[i]
        program = " ".join([name, *(["launch"] if name == "accelerate" else []), *(["-m"] if module else [])])
        process = _make(
            command, "unread", f"{program} {head.text[:80]}", words[i + 1 + module :], head, order
        )
        if process is not None:
            process.launcher = {} if python and not launched else options_of(words[1:i])[0]
        return process
    return None


def _python(command: Command, order: int) -> Process | None:
    words = command.words
    for i, word in enumerate(words[1:], 1):
        if word.text == "-m" and i + 1 < len(words):
            module = words[i + 1].text
            if module in _LAUNCHERS:
                return _launched(command, module, i + 2, order)
            if module == "swift.cli.main" and i + 2 < len(words):
                sub = words[i + 2].text.replace("_", "-")
                return _make(command, _SIDES.get(sub), f"swift {sub}", words[i + 3 :], words[i + 2], order)
            if match := re.fullmatch(r"swift\.cli\.(\w+)", module):
                return _direct(command, match[1], words[i + 2 :], words[i + 1], order)
            if module == "vllm.entrypoints.openai.api_server":
                return _make(command, "server", "vllm serve", words[i + 2 :], words[i + 1], order)
            return None
        if match := _SCRIPT.search(word.text):
            return _direct(command, match[1], words[i + 1 :], word, order)
        if not word.text.startswith("-"):
            return None
    return None


def _direct(command: Command, sub: str, rest: list[Word], head: Word, order: int) -> Process | None:
    """A program of ms-swift that is started without its command line, so that NPROC_PER_NODE starts no
    ranks."""
    process = _make(command, _SIDES.get(sub), f"swift/cli/{sub}.py", rest, head, order)
    if process is not None:
        process.launcher = {}
    return process


def _launched(command: Command, launcher: str, start: int, order: int) -> Process | None:
    words = command.words
    for i in range(start, len(words)):
        module = words[i].text
        match = _SCRIPT.search(module) or re.fullmatch(r"swift\.cli\.(\w+)", module)
        if match and match[1] in _SIDES:
            process = _make(
                command, _SIDES[match[1]], f"{launcher} {match[1]}", words[i + 1 :], words[i], order
            )
            if process is not None:
                process.launcher = options_of(words[start:i])[0]
            return process
    return None


def _make(
    command: Command, side: str | None, program: str, rest: list[Word], head: Word, order: int
) -> Process | None:
    if side is None:
        return None
    options, positional, hidden = options_of(rest)
    return Process(side, program, command, options, positional, head=head, hidden=hidden, order=order)


def wait_of(command: Command, order: int) -> Wait | None:
    """How a command waits for a server: a fixed sleep, a look at the server; None where it does neither."""
    name = name_of(command.words[0])
    if name == "sleep" and not command.in_loop and len(command.words) > 1:
        return Wait("sleep", command, order, _seconds(command.words[1].text))
    if name in _PROBES:
        return Wait("check", command, order)
    if (
        any("/health" in word.text or "is_port_open" in word.text for word in command.words[1:])
        and name != "echo"
    ):
        return Wait("check", command, order)
    return None


def _seconds(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,9})(?:\.\d*)?([smhd]?)", text)
    return int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]] if match else None
