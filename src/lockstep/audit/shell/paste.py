"""Gives back what pasting took from a script: the backslash at the end of a line, the hash before a comment.

Forums and chat windows eat both. What is left has lines that no shell could mean: one that begins with
`--flag`, or with a sentence. Such
lines, and only where there are some, are put right: a flag joins the command above it, with the assignments
right above that command, and
sentences become comments. A script in which nothing was lost comes back as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lockstep.audit.shell.scan import closes_later, heredoc, one_assignment, open_quote
from lockstep.audit.shell.text import Row

_FLAG = re.compile(r"\s*--?[A-Za-z_]")
_PROGRAM = re.compile(
    r"(?:^|[\s/'\"(])(swift|megatron|torchrun|vllm|trl|accelerate|deepspeed|python[\d.]*|docker|podman|srun)(?=\s|$)"
)
_SENTENCE = re.compile(r"(?:---|===|```|[^\x00-\x7f]|\d+[\s.)]|[A-Z][\w'&-]*[,:]?\s)")
_ASSIGNED = re.compile(r"\s*(?:export\s+)?[A-Za-z_]\w*\+?=")
_FUNCTION = re.compile(r"^[ \t]*(?:function[ \t]+)?([A-Za-z_][\w-]*)[ \t]*\([ \t]*\)", re.MULTILINE)
_USED = re.compile(r"\$\{?(\w+)")
_COMMON = frozenset(
    [
        "echo",
        "printf",
        "export",
        "cd",
        "source",
        "set",
        "pip",
        "pip3",
        "conda",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "cat",
        "tail",
        "tee",
        "if",
        "then",
        "else",
        "fi",
        "for",
        "do",
        "done",
        "while",
        "until",
        "case",
        "esac",
        "sleep",
        "wait",
        "nohup",
        "sudo",
        "env",
        "exec",
        "exit",
        "kill",
        "ls",
        "git",
        "wget",
        "curl",
        "ray",
        "unset",
        "local",
        "return",
        "function",
        "time",
        "trap",
        "module",
    ]
)


@dataclass(slots=True)
class Repaired:
    rows: list[Row]
    pasted: bool = False
    joined: list[int] = field(default_factory=list)
    """Author's lines that got their continuation back."""
    sentences: list[int] = field(default_factory=list)
    """Author's lines that are no shell at all."""
    cut_off: list[tuple[int, int]] = field(default_factory=list)
    """(line where a command ends too early, line of the first argument that it loses)."""


def repair(lines: list[str]) -> Repaired:
    """The lines as rows to parse. `lines` have no line ends; the result's rows keep their numbers, counted
    from 1."""
    kinds = _classify(lines)
    found = _attach(lines, kinds)
    pasted = bool(found.commands) or any(
        k == "sentence" and not lines[i].lstrip().isascii() for i, k in enumerate(kinds)
    )
    if not pasted:
        return Repaired([Row(line, i + 1) for i, line in enumerate(lines)], cut_off=found.cut_off)
    text = list(lines)
    out = Repaired([], pasted=True, cut_off=found.cut_off)
    for i, kind in enumerate(kinds):
        if kind == "sentence" or i in found.orphans:
            text[i] = f"# {lines[i]}"
            out.sentences.append(i + 1)
    order = list(range(len(lines)))
    for start, last in _with_single_lines(lines, kinds, found.commands):
        first, plain = _assignments_above(lines, kinds, start, last)
        members = [i for i in range(first, last + 1) if kinds[i] != "comment" and i not in plain]
        for i in members[:-1]:
            text[i] = f"{text[i].rstrip()} \\" if text[i].strip() else "\\"
            if lines[i].strip():
                out.joined.append(i + 1)
        # What cannot stand between the lines of one command goes before it.
        order[first : last + 1] = [i for i in range(first, last + 1) if i not in members] + members
    out.rows = [Row(text[i], i + 1) for i in order]
    return out


def _classify(lines: list[str]) -> list[str]:
    """For each line: code, flag, sentence, comment, blank, or inside (a quoted string, a heredoc, a continued
    line)."""
    functions = set(_FUNCTION.findall("\n".join(lines)))
    last = {line.strip(): i for i, line in enumerate(lines)}
    kinds: list[str] = []
    quote, until, continued = "", "", False
    for i, line in enumerate(lines):
        stripped = line.strip()
        if until:
            kinds.append("inside")
            if stripped == until:
                until = ""
            continue
        if quote:
            kinds.append("inside")
            quote = open_quote(line, quote)
            continue
        if continued:
            kinds.append("inside" if stripped else "blank")
        elif not stripped:
            kinds.append("blank")
        elif stripped.startswith("#"):
            kinds.append("comment")
        elif _FLAG.match(line):
            kinds.append("flag")
        elif _is_sentence(stripped, functions):
            kinds.append("sentence")
            continue
        else:
            kinds.append("code")
        if kinds[-1] == "comment":
            continue
        quote = open_quote(line, "")
        if quote and not closes_later(lines, i + 1, quote):
            quote = ""
        until = "" if quote else heredoc(line, i, last)
        continued = not quote and bool(re.search(r"(?<!\\)(?:\\\\)*\\$", line))
    return kinds


def _is_sentence(stripped: str, functions: set[str]) -> bool:
    first = stripped.split(None, 1)[0]
    if _ASSIGNED.match(stripped) or first in functions or first in _COMMON or "(" in first or "/" in first:
        return False
    if _SENTENCE.match(stripped):
        return True
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", stripped)
    return not bare.isascii() and not _PROGRAM.search(bare)


@dataclass(slots=True)
class _Found:
    commands: list[tuple[int, int]] = field(default_factory=list)
    """(first line, last line) of commands whose continuations are lost, counted from 0."""
    orphans: set[int] = field(default_factory=set)
    cut_off: list[tuple[int, int]] = field(default_factory=list)


def _attach(lines: list[str], kinds: list[str]) -> _Found:
    """Which flags standing alone belong to which command."""
    found = _Found()
    start, last = -1, -1
    slashes = program = False
    for i, kind in enumerate(kinds):
        if kind == "code":
            start, last, slashes = i, i, lines[i].rstrip().endswith("\\")
            program = bool(_PROGRAM.search(lines[i]))
        elif kind == "inside" and start >= 0:
            last, slashes = i, slashes or lines[i].rstrip().endswith("\\")
            program = program or bool(_PROGRAM.search(lines[i]))
        elif kind == "sentence":
            start = -1
        elif kind == "flag":
            ended = start < 0 or lines[last].rstrip().endswith(("&", ";", "|")) or not program
            if ended:
                found.orphans.add(i)
            elif slashes:
                if not found.cut_off or found.cut_off[-1][0] != last + 1:
                    found.cut_off.append((last + 1, i + 1))
            else:
                if found.commands and found.commands[-1][0] == start:
                    found.commands.pop()
                found.commands.append((start, i))
                last, program = i, program or bool(_PROGRAM.search(lines[i]))
    return found


def _with_single_lines(
    lines: list[str], kinds: list[str], commands: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The commands, and those that stand on one line under assignments, in order."""
    taken = {i for start, last in commands for i in range(start, last + 1)}
    single = [
        (i, i)
        for i, kind in enumerate(kinds)
        if kind == "code"
        and i not in taken
        and i
        and not one_assignment(lines[i])
        and re.match(r"\s*\S*\b(swift|torchrun)\s", lines[i])
    ]
    return sorted(
        commands
        + [pair for pair in single if one_assignment(lines[pair[0] - 1]) and kinds[pair[0] - 1] == "code"]
    )


def _assignments_above(lines: list[str], kinds: list[str], start: int, last: int) -> tuple[int, set[int]]:
    """First line of the run of assignments above a command, and those of the run that must stay statements.

    Bash expands a command's words before it makes the assignments in front of it, so a variable that the
    command itself uses was never
    one of these.
    """
    used = {name for line in lines[start : last + 1] for name in _USED.findall(line)}
    loose = any(not lines[i].strip() for i in range(start, last))
    first, i = start, start - 1
    plain: set[int] = set()
    while i >= 0:
        if loose and not lines[i].strip() and i and kinds[i - 1] == "code" and one_assignment(lines[i - 1]):
            i -= 1
            continue
        name = one_assignment(lines[i]) if kinds[i] == "code" else None
        if name is None:
            break
        if name in used:
            plain.add(i)
        first = i
        i -= 1
    return first, plain
