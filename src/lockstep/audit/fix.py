"""Corrects scripts: the smallest edits that take the findings away, as a unified diff.

What pasting lost is given back as well, as the result must run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path

from lockstep.audit.checks.startup import sleeps_for_server
from lockstep.audit.cures import apart, choose, in_place
from lockstep.audit.devices import asynchronous, parallel
from lockstep.audit.job import from_texts
from lockstep.audit.model import Job, Option, Process, Setting, Word
from lockstep.audit.shell.text import Layout
from lockstep.report.safe_text import one_line

_LOCAL = ("0.0.0.0", "localhost", "::", "")
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})\Z")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A script, corrected. `diff` is empty where there is nothing to change."""

    path: str
    text: str
    diff: str


@dataclass(slots=True)
class _Edits:
    """Replacements of bytes, by script. `left` says in words what could not be edited."""

    spans: dict[str, set[tuple[int, int, str]]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def add(self, path: str, start: int, end: int, text: str) -> None:
        spans = self.spans.setdefault(path, set())
        if not any(s < end and start < e for s, e, t in spans if (s, e, t) != (start, end, text)):
            spans.add((start, end, text))


def fix(
    texts: Iterable[tuple[str, str]], pinned: dict[str, str] | None = None, remedy: str | None = None
) -> tuple[list[Fixed], list[str]]:
    """Corrected scripts from (path, text) pairs, and in words what is left to do by hand.

    `remedy` is an id of `cures.CURES`, the first that fits where it is None. Raises AuditError as
    the audit does, and KeyError
    for an unknown remedy.
    """
    texts = list(texts)
    job = from_texts(texts, pinned)
    edits = _Edits()
    for process in job.side("rollout"):
        _remove_settings(process, job, edits)
        _cure(process, job, edits, remedy)
    _health_checks(job, edits)
    fixed = []
    for path, text in texts:
        new = _apply(job.layouts[path], edits.spans.get(path, set()))
        fixed.append(Fixed(path, new, _diff(path, text, new)))
    return fixed, edits.left


def _apply(layout: Layout, spans: set[tuple[int, int, str]]) -> str:
    data = layout.data
    for start, end, text in sorted(spans, reverse=True):
        data = data[:start] + text.encode() + data[end:]
    return data.decode()


def _diff(path: str, old: str, new: str) -> str:
    name = one_line(_name(path))  # patch asks for the file where that is another name
    lines = unified_diff(_lines(old), _lines(new), fromfile=name, tofile=name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _name(path: str) -> str:
    """A script's name in a diff: relative to the working directory, as patch refuses `/` and `..`; absolute
    where the script lies elsewhere."""
    place = Path(path).resolve()
    name = str(place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place)
    # Without a tab behind it patch takes a blank for the name's end.
    return f"{name}\t" if " " in name else name


def _lines(text: str) -> list[str]:
    # Only \n ends a line for patch and for the shell; str.splitlines knows many more.
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _remove_settings(process: Process, job: Job, edits: _Edits) -> None:
    for name in ("MASTER_PORT", "MASTER_ADDR"):
        setting = process.command.env.get(name)
        if setting is None or setting.how not in ("prefix", "option"):
            continue
        if setting.how == "option" or setting.start < 0:
            edits.left.append(f"{setting.place}: remove {name} by hand: it is an option of a wrapper")
            continue
        start, end = _whole_row(job.layouts[setting.place.path], setting)
        edits.add(setting.place.path, start, end, "")


def _whole_row(layout: Layout, setting: Setting) -> tuple[int, int]:
    """The bytes to cut with an assignment: its whole row where it stands there alone, else the blanks after
    it."""
    first = layout.starts[layout.row(setting.start)]
    after = re.compile(rb"[ \t]*\\?\n").match(layout.data, setting.end)
    if not layout.data[first : setting.start].strip() and after:
        return first, after.end()
    blanks = re.compile(rb"(?:[ \t]|\\\n)*").match(layout.data, setting.end)
    return setting.start, blanks.end() if blanks else setting.end


def _cure(process: Process, job: Job, edits: _Edits, remedy: str | None) -> None:
    tensor, data = parallel(process)
    if asynchronous(process) is not False or data is None or data < 2 or in_place(process):
        return
    if apart(process, job.versions):
        return
    if process.program.startswith("trl"):
        edits.left.append(f"{process.place}: change the data parallel size of trl vllm-serve by hand")
        return
    cure = choose(remedy, process)
    change = cure.change
    layout = job.layouts[process.place.path]
    if change.servers:
        edits.left.append(f"{process.place}: {cure.name}: write by hand: {cure.how}")
    if cure.file:
        _add_plugin(process, layout, edits, cure.file)
    if change.tensor_parallel:
        _set(process, layout, edits, "vllm_tensor_parallel_size", str((tensor or 1) * data))
        _set(process, layout, edits, "vllm_data_parallel_size", "1")
    for name, value in change.rollout.items():
        _set(process, layout, edits, name, str(value).lower() if isinstance(value, bool) else str(value))
    for name, value in change.rollout_env.items():
        _set_variable(process, layout, edits, name, value)


def _add_plugin(process: Process, layout: Layout, edits: _Edits, file: str) -> None:
    given = process.options.get("external_plugins")
    if given is None:
        _insert(process, layout, edits, f"--external_plugins {file}")
    elif _span(given, process) is None:
        edits.left.append(f"{given.word.place}: add {file} to --external_plugins by hand")
    else:
        edits.add(layout.path, given.end, given.end, f" {file}")


def _set_variable(process: Process, layout: Layout, edits: _Edits, name: str, value: str) -> None:
    word = process.command.words[0]
    if word.start < 0:
        edits.left.append(f"{process.place}: set {name}={value} by hand")
        return
    assignment = f"{'env ' if process.command.wrapped else ''}{name}={value}"
    own_row = not process.command.wrapped and _alone_before(layout, word.start)
    end = f" \\\n{_indent(layout, word.start)}" if own_row else " "
    edits.add(layout.path, word.start, word.start, assignment + end)


def _set(process: Process, layout: Layout, edits: _Edits, name: str, value: str) -> None:
    """Gives an option a value, in its place or after the data parallel size."""
    option = process.options.get(name)
    if option is None:
        _insert(process, layout, edits, f"--{name} {value}")
        return
    span = _span(option, process)
    if span is None:
        edits.left.append(f"{option.word.place}: set --{name} {value} by hand: it comes from a variable")
        return
    start, end, prefix = span
    edits.add(layout.path, start, end, f"{prefix}{value}")


def _span(option: Option, process: Process) -> tuple[int, int, str] | None:
    """Where an option's value is written, and what to write before the new one; None where it is not written
    as such."""
    words = [option.word, *option.values]
    spans = [(word.start, word.end) for word in process.command.words]
    if any(word.start < 0 for word in words):
        return None
    if option.values and (option.values[0].start, option.values[0].end) == (
        option.word.start,
        option.word.end,
    ):
        if spans.count((option.word.start, option.word.end)) > 1 or "=" not in option.word.text:
            return None
        return option.word.start, option.word.end, option.word.text.partition("=")[0] + "="
    if any(spans.count((word.start, word.end)) > 1 for word in words):
        return None
    if not option.values:
        return option.word.end, option.word.end, " "
    return option.values[0].start, option.values[-1].end, ""


def _insert(process: Process, layout: Layout, edits: _Edits, text: str) -> None:
    anchor = process.options.get("vllm_data_parallel_size")
    inside = (
        anchor is not None
        and process.command.start <= anchor.word.start
        and anchor.end <= process.command.end
    )
    if anchor is not None and inside and _span(anchor, process) is not None:
        own_row = _alone_before(layout, anchor.word.start)
        at = anchor.end
        edits.add(
            layout.path, at, at, f" \\\n{_indent(layout, anchor.word.start)}{text}" if own_row else f" {text}"
        )
    elif process.head is not None and process.head.start >= 0:
        edits.add(layout.path, process.head.end, process.head.end, f" {text}")
    else:
        edits.left.append(f"{process.place}: add {text} by hand")


def _alone_before(layout: Layout, offset: int) -> bool:
    return not layout.data[layout.starts[layout.row(offset)] : offset].strip()


def _indent(layout: Layout, offset: int) -> str:
    line = layout.data[layout.starts[layout.row(offset)] : offset]
    return (line[: len(line) - len(line.lstrip())]).decode()


def _health_checks(job: Job, edits: _Edits) -> None:
    done: set[int] = set()
    for wait, servers, _ in sleeps_for_server(job):
        command = wait.command
        path = command.place.path
        layout = job.layouts[path]
        urls = [_url(server, layout) for server in servers]
        if command.inside == '"' or command.start < 0 or None in urls:
            edits.left.append(f"{command.place}: write a health check in place of this sleep by hand")
            continue
        indent = _indent(layout, command.start)
        # $! is the last background job: the server's only while nothing else was put there.
        others = any(c.background for c in job.commands[servers[0].order + 1 : wait.order])
        alone = (
            len(servers) == 1
            and servers[0].command.background
            and servers[0].command.machine == command.machine
            and not others
        )
        if command.start in done:
            continue
        done.add(command.start)
        loops = [_loop(str(url), indent, alone) for url in dict.fromkeys(urls)]
        edits.add(path, command.start, command.end, f"\n{indent}".join(loops))


def _loop(url: str, indent: str, watch: bool) -> str:
    lines = [f'until curl --silent --fail --output /dev/null --noproxy "*" "{url}"; do']
    if watch:
        lines.append('    kill -0 $! || { echo "the rollout server has ended" >&2; exit 1; }')
    lines += ["    sleep 2", "done"]
    return f"\n{indent}".join(lines)


def _url(server: Process, layout: Layout) -> str | None:
    port = _shown(server.options.get("port"), layout, "8000")
    host = _shown(server.options.get("host"), layout, "127.0.0.1")
    if port is None:
        return None
    return f"http://{'127.0.0.1' if host is None or host in _LOCAL else host}:{port}/health/"


def _shown(option: Option | None, layout: Layout, default: str) -> str | None:
    """An option's value as it can be written once more; None where that would be another value."""
    if option is None or not option.values:
        return default
    word: Word = option.values[0]
    if word.value.known:
        return word.text if re.fullmatch(r"[\w.:-]+", word.text) else None
    raw = layout.data[word.start : word.end].decode().strip('"') if word.start >= 0 else ""
    if "=" in raw:
        raw = raw.partition("=")[2].strip('"')
    return raw if _VARIABLE.match(raw) else None
