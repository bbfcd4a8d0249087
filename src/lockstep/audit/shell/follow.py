"""Follows a script from its first line to its last and writes down the commands it would run. Runs none.

The parser is tree-sitter's bash grammar: it goes on after an error, so one odd line does not hide the rest.
Both branches of an `if` are followed, functions where they are called, a `for` over words once for each word,
other loops once.
"""

from __future__ import annotations

import re
from dataclasses import replace

from tree_sitter import Node

from lockstep.audit.meter import NAMES_PER_STEP, Meter
from lockstep.audit.model import Command, Setting, Word, unknown
from lockstep.audit.shell.assign import assign
from lockstep.audit.shell.scope import Scope
from lockstep.audit.shell.statements import Followed, Statements, Where
from lockstep.audit.shell.text import Layout
from lockstep.audit.shell.words import Expander, Text
from lockstep.audit.shell.wrappers import SHELLS, WRAPPERS, may_be_process, name_of, unwrap

_BYTES_PER_STEP = 256
"""Bytes of a script quoted in another that count as one step."""
_PASSED_PER_STEP = 5
"""Variables that a process gets that count as one step: each is shown."""


def follow(layout: Layout) -> Followed:
    """Follows a whole script. Raises AuditError where it is too large to follow."""
    follower = _Follower()
    follower.script(Text(layout, layout.data), Scope(follower.meter), Where())
    return follower.out


class _Follower(Statements):
    def command(self, node: Node, text: Text, scope: Scope, where: Where, documents: list[Node]) -> None:
        expander = Expander(text)
        words: list[Word] = []
        prefix: dict[str, Setting] = {}
        inner: Scope | None = None
        for child in node.named_children:
            if child.type == "variable_assignment":
                inner = inner or scope.copy()
                # Bash expands each with the ones before it, but the command's own words with none of them.
                setting = assign(child, text, inner, "prefix")
                if setting:
                    prefix[setting.name] = setting
            elif child.type == "command_name":
                words.extend(w for part in child.named_children for w in expander.words(part, scope))
            elif not child.type.endswith(("_redirect", "comment", "herestring_redirect")):
                words.extend(expander.words(child, scope))
        if not words:
            for setting in prefix.values():
                scope.set(setting)
            return
        if self._builtin(words, scope, where):
            return
        name = words[0].text
        if name in scope.functions:
            self._call(name, words, prefix, scope, where)
            return
        self._run(node, text, words, prefix, scope, where, documents)

    def _builtin(self, words: list[Word], scope: Scope, where: Where) -> bool:
        name, rest = words[0].text, [word.text for word in words[1:]]
        if name == "set" and rest:
            if "allexport" in rest or any(re.fullmatch(r"[-+]\w*a\w*", word) for word in rest):
                scope.export_all = rest[0].startswith("-")
            return True
        if name in ("source", ".") and rest:
            self.out.sourced.append((rest[0], words[0].place))
            return True
        if name == "read":
            for word in words[1:]:
                if word.text.isidentifier():
                    scope.set(
                        Setting(
                            word.text, unknown(f"${word.text}", f"read at {word.place}"), word.place, "read"
                        )
                    )
            return True
        return False

    def _call(
        self, name: str, words: list[Word], prefix: dict[str, Setting], scope: Scope, where: Where
    ) -> None:
        body, home = scope.functions[name]
        arguments = scope.arguments
        inner = scope.copy() if prefix or where.background else scope
        for setting in prefix.values():
            inner.set(setting)
            inner.exported.add(setting.name)
        inner.arguments = [word.value for word in words[1:]]
        self.statement(body, home, inner, where)
        inner.arguments = arguments

    def _run(
        self,
        node: Node,
        text: Text,
        words: list[Word],
        prefix: dict[str, Setting],
        scope: Scope,
        where: Where,
        documents: list[Node],
    ) -> None:
        bare = unwrap(words)
        where = replace(
            where,
            machine=bare.machine or where.machine,
            wrapped=where.wrapped or bare.wrapped,
            text_from=where.text_from + bare.text_from,
        )

        def environment() -> dict[str, Setting]:
            outside = {} if bare.isolated else {**scope.environment(), **prefix}
            return {**outside, **{setting.name: setting for setting in bare.added}}

        if bare.script is not None and bare.script.start >= 0:
            self._nested(
                bare.script, text, environment(), scope, where, eval_like=name_of(words[0]) == "eval"
            )
            return
        program = name_of(bare.words[0]) if bare.words else ""
        if documents and (program in SHELLS or program in ("ssh", "sbatch")):
            env = environment()
            for document in documents:
                isolated = program == "ssh"
                inner = _fresh({} if isolated else env, scope if not isolated else None, self.meter)
                self.meter.spend((document.end_byte - document.start_byte) / _BYTES_PER_STEP)
                self.script(
                    text.nested(document.start_byte, document.end_byte, escaped=False),
                    inner,
                    replace(where, wrapped=True),
                )
            return
        script = (
            next((w for w in bare.words[1:] if not w.text.startswith("-")), None)
            if program in SHELLS | {"sbatch"}
            else None
        )
        if script is None:
            # By its own name, or behind a wrapper that takes any program.
            candidates = bare.words if program in WRAPPERS else bare.words[:1]
            script = next((w for w in candidates if w.text.endswith((".sh", ".bash"))), None)
        if script is not None:
            self.out.called.append((script.text, script.place))
        command = Command(
            words=bare.words,
            env={},
            place=text.place(node.start_byte),
            start=text.offset(node.start_byte),
            end=text.offset(node.end_byte),
            wrapped=where.wrapped,
            background=where.background,
            in_loop=where.in_loop,
            machine=where.machine,
            inside=where.inside,
            text_from=where.text_from,
        )
        if may_be_process(command):
            command.env = environment()
            command.shell_only = {n: s for n, s in scope.shell_only().items() if n not in command.env}
            self.meter.spend((len(command.env) + len(command.shell_only)) / _PASSED_PER_STEP)
        self.out.commands.append(command)

    def _nested(
        self, word: Word, text: Text, env: dict[str, Setting], scope: Scope, where: Where, eval_like: bool
    ) -> None:
        """Follows a script that is an argument. Its bytes are looked up again, so that places and edits stay
        exact."""
        local = _local_span(text, word)
        if local is None:
            return
        start, end = local
        quote = word.quote
        cut = 1 if quote else 0
        self.meter.spend((end - start) / _BYTES_PER_STEP)
        nested = text.nested(start + cut, end - cut, escaped=quote == '"')
        # Inside double quotes the shell outside fills the variables in; inside single quotes it does not.
        inner = scope if eval_like else _fresh(env, scope if quote != "'" else None, self.meter)
        self.script(nested, inner, replace(where, inside=quote or where.inside, wrapped=True))


def _fresh(env: dict[str, Setting], visible: Scope | None, meter: Meter) -> Scope:
    """The scope of a new shell that gets `env`, with the variables of `visible` filled in by the shell
    outside."""
    inner = Scope(meter)
    meter.spend((len(env) + (len(visible.values) if visible is not None else 0)) / NAMES_PER_STEP)
    if visible is not None:
        inner.values = dict(visible.values)
        inner.arrays = dict(visible.arrays)
    inner.values.update(env)
    inner.exported = set(env)
    return inner


def _local_span(text: Text, word: Word) -> tuple[int, int] | None:
    """A word's bytes in the text it stands in, found from those in the script."""
    start, end = text.local(word.start), text.local(word.end)
    return None if start is None or end is None else (start, end)
