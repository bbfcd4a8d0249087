"""Takes off what stands around a program: nohup, env, srun, docker run, bash -c, ssh. Says what each adds to
its environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lockstep.audit.model import Command, Part, Setting, Value, Word, literal

PYTHON = re.compile(r"python[\d.]*\Z")
_PROGRAMS = frozenset(("swift", "megatron", "trl", "vllm", "torchrun", "accelerate", "deepspeed"))
"""Programs that can start part of a job, besides Python."""
SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_PLAIN = frozenset(
    [
        "nohup",
        "setsid",
        "time",
        "exec",
        "sudo",
        "command",
        "builtin",
        "nice",
        "ionice",
        "timeout",
        "stdbuf",
        "numactl",
        "taskset",
        "unbuffer",
        "env",
        "xargs",
        "uv",
        "uvx",
        "conda",
        "mamba",
        "poetry",
        "pixi",
        "watch",
        "flock",
        "chrt",
        "proxychains4",
        "nsys",
        "ncu",
        "py-spy",
    ]
)
_ELSEWHERE = {
    "docker": "container",
    "podman": "container",
    "nerdctl": "container",
    "singularity": "container",
    "apptainer": "container",
    "kubectl": "container",
    "ssh": "host",
    "pdsh": "host",
    "srun": "job step",
    "sbatch": "job",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "tmux": "",
    "screen": "",
}
WRAPPERS = _PLAIN | _ELSEWHERE.keys()
_ISOLATED = frozenset({"docker", "podman", "nerdctl", "kubectl", "ssh", "pdsh"})
_IMAGE_WORDS = 16
"""Words of a wrapper that may name an image: the image stands last."""
_SUBCOMMANDS = frozenset(
    [
        "pt",
        "sft",
        "infer",
        "merge-lora",
        "web-ui",
        "deploy",
        "rollout",
        "rlhf",
        "sample",
        "export",
        "eval",
        "app",
    ]
)
_PYTHON = re.compile(r"python[\d.]*\Z")
_INTERESTING = re.compile(r"\b(swift|megatron|torchrun|vllm|trl|accelerate|deepspeed|python[\d.]*|bash|sh)\s")


@dataclass(slots=True)
class Unwrapped:
    """What is left: words to run, or a script to read. `added` is what the wrappers put into the
    environment."""

    words: list[Word]
    script: Word | None = None
    added: list[Setting] = field(default_factory=list)
    isolated: bool = False
    """The environment of the shell outside does not come in."""
    machine: str = ""
    wrapped: bool = False
    text_from: tuple[str, ...] = ()


def name_of(word: Word) -> str:
    """A program's name without its folder."""
    return word.text.rsplit("/", 1)[-1]


def begins_program(words: list[Word], i: int) -> bool:
    """Whether a program that this audit knows, or a wrapper around one, may begin at word `i`."""
    name = name_of(words[i])
    after = words[i + 1].text if i + 1 < len(words) else ""
    if name in ("swift", "megatron"):
        return after.replace("_", "-") in _SUBCOMMANDS
    if name == "vllm":
        return after == "serve"
    if name == "trl":
        return after == "vllm-serve"
    if name in ("accelerate", "deepspeed", "torchrun") or _PYTHON.match(name):
        return bool(after)
    return name in SHELLS and any(
        w.text.startswith("-") and w.text.endswith("c") for w in words[i + 1 : i + 4]
    )


def unwrap(words: list[Word]) -> Unwrapped:
    """Takes wrappers off as long as there are some."""
    out = Unwrapped(words)
    for _ in range(8):
        if not out.words:
            return out
        name = name_of(out.words[0])
        if name in SHELLS:
            _shell(out)
            return out
        if name == "eval" and len(out.words) == 2:
            out.script = out.words[1]
            return out
        if name not in _PLAIN and name not in _ELSEWHERE:
            return out
        words = out.words
        inner = next((i for i in range(1, len(words)) if begins_program(words, i)), None)
        inner = (
            inner
            if inner is not None
            else next((i for i in range(1, len(words)) if name_of(words[i]) in _PLAIN), None)
        )
        script = None
        if inner is None:
            script = next(
                (w for w in reversed(words) if re.search(r"\s", w.text) and _INTERESTING.search(w.text)), None
            )
            if script is None:
                return out
        before = words[1:inner] if inner is not None else words[1:]
        out.added.extend(_environment(name, before))
        if name in _ISOLATED:
            out.isolated = True
        if label := _ELSEWHERE.get(name):
            out.machine = f"{label} of {words[0].place}"
        out.text_from += tuple(w.text for w in before if "/" in w.text or ":" in w.text)[-_IMAGE_WORDS:]
        out.wrapped = True
        if inner is None:
            out.script = script
            return out
        out.words = words[inner:]
    return out


def _shell(out: Unwrapped) -> None:
    words = out.words
    for i, word in enumerate(words[1:], 1):
        if not word.text.startswith("-"):
            return
        if not word.text.startswith("--") and word.text.endswith("c"):
            out.script = words[i + 1] if i + 1 < len(words) else None
            return


def _environment(wrapper: str, words: list[Word]) -> list[Setting]:
    """Variables that a wrapper's own words set."""
    found: list[Setting] = []

    def take(text: str, word: Word) -> None:
        name, equals, _ = text.partition("=")
        if equals and name.isidentifier():
            value = without_start(word.value, len(word.text) - len(text) + len(name) + 1)
            found.append(Setting(name, value, word.place, "option", word.start, word.end))

    bare = wrapper in ("env", "sudo")
    for i, word in enumerate(words):
        text = word.text
        bare = bare or text == "env"
        if bare and "=" in text and not text.startswith("-"):
            take(text, word)
        elif wrapper == "srun" and text.startswith("--export="):
            for piece in text.removeprefix("--export=").split(","):
                name, equals, value = piece.partition("=")
                if equals and name.isidentifier():
                    found.append(Setting(name, literal(value), word.place, "option"))
        elif text in ("-e", "--env", "-x") and i + 1 < len(words):
            take(words[i + 1].text, words[i + 1])
        elif text.startswith(("--env=", "-e=")):
            take(text.partition("=")[2], word)
        elif wrapper in ("docker", "podman") and (text == "--gpus" or text.startswith("--gpus=")):
            value = words[i + 1].text if text == "--gpus" and i + 1 < len(words) else text.partition("=")[2]
            if match := re.search(r"device=([\w,-]+)", value):
                found.append(Setting("NVIDIA_VISIBLE_DEVICES", literal(match[1]), word.place, "option"))
    return found


def without_start(value: Value, count: int) -> Value:
    """A value without its first `count` characters."""
    parts: list[Part] = []
    for part in value.parts:
        kept = part.text[count:]
        count = max(0, count - len(part.text))
        if kept:
            parts.append(Part(kept, part.known, part.origin))
    return Value(tuple(parts))


def may_be_process(command: Command) -> bool:
    """Whether a command's first word is a program that can start part of a job, so that its environment
    matters."""
    name = name_of(command.words[0]) if command.words else ""
    return name in _PROGRAMS or PYTHON.match(name) is not None
