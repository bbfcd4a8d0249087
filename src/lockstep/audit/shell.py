"""Follows a script from its first line to its last without running any of it, and writes down the commands it would run.

The parser is tree-sitter's bash grammar: it goes on after an error, so one odd line does not hide the rest.
Both branches of an `if` are
followed, functions where they are called, a `for` over words once for each word, other loops once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from lockstep.audit.model import AuditError, Command, Place, Setting, Value, Word, unknown
from lockstep.audit.scope import Scope
from lockstep.audit.text import Layout
from lockstep.audit.words import Expander, Text
from lockstep.audit.wrappers import SHELLS, name_of, unwrap

MAX_STEPS = 50_000
"""Statements followed in one script; a script that needs more is made by a program, or to do harm."""
_MAX_DEPTH = 60
_MAX_TURNS = 16
_BLOCKS = frozenset(
    (
        "program",
        "compound_statement",
        "do_group",
        "negated_command",
        "ERROR",
        "else_clause",
        "parenthesized_expression",
    )
)
_LANGUAGE = Language(tree_sitter_bash.language())


@dataclass(slots=True)
class Followed:
    """What a script would run, and what of it could not be read."""

    commands: list[Command] = field(default_factory=list)
    errors: list[Place] = field(default_factory=list)
    """Where the parser did not understand the text."""
    sourced: list[tuple[str, Place]] = field(default_factory=list)
    called: list[tuple[str, Place]] = field(default_factory=list)
    """Other scripts that it runs or sources, with the place of the call."""


@dataclass(frozen=True, slots=True)
class _Where:
    """The surroundings of a statement."""

    depth: int = 0
    background: bool = False
    in_loop: bool = False
    machine: str = ""
    inside: str = ""
    wrapped: bool = False
    text_from: tuple[str, ...] = ()


def parse(data: bytes) -> Node:
    return Parser(_LANGUAGE).parse(data).root_node


def follow(layout: Layout) -> Followed:
    """Follows a whole script. Raises AuditError where it is too large to follow."""
    follower = _Follower(layout.path)
    text = Text(layout, layout.data)
    follower.script(text, Scope(), _Where())
    return follower.out


class _Follower:
    def __init__(self, path: str) -> None:
        self.out = Followed()
        self._path = path
        self._steps = 0

    def script(self, text: Text, scope: Scope, where: _Where) -> None:
        root = parse(text.data)
        if root.has_error:
            self._note_errors(root, text)
        self._block(root, text, scope, where)

    def _note_errors(self, root: Node, text: Text) -> None:
        stack = [root]
        while stack and len(self.out.errors) < 20:
            node = stack.pop()
            if node.type == "ERROR" or node.is_missing:
                self.out.errors.append(text.place(node.start_byte))
            elif node.has_error:
                stack.extend(reversed(node.children))

    def _block(self, node: Node, text: Text, scope: Scope, where: _Where) -> None:
        children = node.children
        for i, child in enumerate(children):
            if child.is_named:
                after = children[i + 1].type if i + 1 < len(children) else ""
                self._statement(
                    child, text, scope, replace(where, background=True) if after == "&" else where
                )

    def _statement(self, node: Node, text: Text, scope: Scope, where: _Where) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            place = text.place(node.start_byte)
            raise AuditError(f"{place}: more than {MAX_STEPS} commands to follow: expected a launch script")
        if where.depth > _MAX_DEPTH:
            return
        where = replace(where, depth=where.depth + 1)
        kind = node.type
        if kind == "command":
            self._command(node, text, scope, where, [])
        elif kind == "variable_assignment":
            self._assign(node, text, scope)
        elif kind == "variable_assignments":
            for child in node.named_children:
                self._assign(child, text, scope)
        elif kind == "declaration_command":
            self._declare(node, text, scope)
        elif kind == "unset_command":
            for child in node.named_children:
                scope.unset(text.of(child))
        elif kind == "redirected_statement":
            self._redirected(node, text, scope, where)
        elif kind == "pipeline":
            for child in node.named_children:
                self._statement(child, text, scope.copy(), where)
        elif kind == "list":
            inner = scope.copy() if where.background else scope
            for child in node.named_children:
                self._statement(child, text, inner, where)
        elif kind == "subshell":
            self._block(node, text, scope.copy(), where)
        elif kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                scope.functions[text.of(name)] = (body, text)
        elif kind == "if_statement":
            self._if(node, text, scope, where)
        elif kind == "case_statement":
            self._case(node, text, scope, where)
        elif kind in ("while_statement", "c_style_for_statement"):
            self._block(node, text, scope, replace(where, in_loop=True))
        elif kind == "for_statement":
            self._for(node, text, scope, where)
        elif kind in _BLOCKS:
            self._block(node, text, scope, where)

    def _assign(self, node: Node, text: Text, scope: Scope, how: str = "export") -> Setting | None:
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if name is None or name.type != "variable_name":
            return None
        expander = Expander(text)
        place = text.place(node.start_byte)
        span = text.offset(node.start_byte), text.offset(node.end_byte)
        if value is not None and value.type == "array":
            words = [
                word
                for child in value.named_children
                if child.type != "comment"
                for word in expander.words(child, scope)
            ]
            added = any(child.type == "+=" for child in node.children)
            scope.unset(text.of(name)) if not added else None
            scope.arrays[text.of(name)] = [*(scope.arrays.get(text.of(name), []) if added else []), *words][
                :4096
            ]
            return None
        result = expander.value(value, scope) if value is not None else Value()
        if any(child.type == "+=" for child in node.children):
            result = (
                Value((*scope.get(text.of(name)).parts, *result.parts)) if len(result.text) < 4096 else result
            )
        setting = Setting(text.of(name), result, place, how, *span)
        scope.set(setting)
        return setting

    def _declare(self, node: Node, text: Text, scope: Scope) -> None:
        raw = [text.of(child) for child in node.children]
        export = raw[0] == "export" or (
            raw[0] in ("declare", "typeset") and any(w.startswith("-") and "x" in w for w in raw[1:])
        )
        for child in node.named_children:
            if child.type == "variable_assignment":
                setting = self._assign(child, text, scope)
                if setting and export:
                    scope.exported.add(setting.name)
            elif child.type == "variable_name" and export:
                scope.exported.add(text.of(child))

    def _redirected(self, node: Node, text: Text, scope: Scope, where: _Where) -> None:
        body = node.child_by_field_name("body")
        documents = [
            n
            for child in node.named_children
            if child.type == "heredoc_redirect"
            for n in child.named_children
        ]
        bodies = [n for n in documents if n.type == "heredoc_body"]
        if body is None:
            return
        if body.type == "command":
            self._command(body, text, scope, where, bodies)
        else:
            self._statement(body, text, scope, where)
        # `cmd <<EOF && next` hangs the rest of its line below the redirection.
        for child in documents:
            if child.type in ("pipeline", "list", "command"):
                self._statement(child, text, scope, where)

    def _if(self, node: Node, text: Text, scope: Scope, where: _Where) -> None:
        branches: list[Scope] = []
        current = scope
        complete = False
        for child in node.children:
            if child.type == "then":
                current = scope.copy()
                branches.append(current)
            elif child.type in ("elif_clause", "else_clause"):
                complete = complete or child.type == "else_clause"
                current = scope.copy()
                branches.append(current)
                self._block(child, text, current, where)
            elif child.is_named:
                self._statement(child, text, current, where)
        scope.merge(branches if complete else [*branches, scope.copy()], text.place(node.start_byte).line)

    def _case(self, node: Node, text: Text, scope: Scope, where: _Where) -> None:
        branches = [scope.copy()]
        for child in node.named_children:
            if child.type == "case_item":
                branch = scope.copy()
                branches.append(branch)
                for statement in child.named_children[1:]:
                    self._statement(statement, text, branch, where)
        scope.merge(branches, text.place(node.start_byte).line)

    def _for(self, node: Node, text: Text, scope: Scope, where: _Where) -> None:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return
        expander = Expander(text)
        words: list[Word] = []
        for child in node.named_children:
            if child.start_byte > variable.start_byte and child.end_byte <= body.start_byte:
                words.extend(expander.words(child, scope))
        where = replace(where, in_loop=True)
        if not words or not all(word.value.known for word in words):
            raw = text.of(variable)
            place = text.place(node.start_byte)
            scope.set(Setting(raw, unknown(f"${raw}", f"loop {place}"), place, "loop"))
            self._statement(body, text, scope, where)
            return
        for word in words[:_MAX_TURNS]:
            scope.set(Setting(text.of(variable), word.value, word.place, "loop"))
            self._statement(body, text, scope, where)

    def _command(self, node: Node, text: Text, scope: Scope, where: _Where, documents: list[Node]) -> None:
        expander = Expander(text)
        words: list[Word] = []
        prefix: dict[str, Setting] = {}
        inner = scope.copy()
        for child in node.named_children:
            if child.type == "variable_assignment":
                # Bash expands each with the ones before it, but the command's own words with none of them.
                setting = self._assign(child, text, inner, "prefix")
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

    def _builtin(self, words: list[Word], scope: Scope, where: _Where) -> bool:
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
        self, name: str, words: list[Word], prefix: dict[str, Setting], scope: Scope, where: _Where
    ) -> None:
        body, home = scope.functions[name]
        arguments = scope.arguments
        inner = scope.copy() if prefix or where.background else scope
        for setting in prefix.values():
            inner.set(setting)
            inner.exported.add(setting.name)
        inner.arguments = [word.value for word in words[1:]]
        self._statement(body, home, inner, where)
        inner.arguments = arguments

    def _run(
        self,
        node: Node,
        text: Text,
        words: list[Word],
        prefix: dict[str, Setting],
        scope: Scope,
        where: _Where,
        documents: list[Node],
    ) -> None:
        bare = unwrap(words)
        where = replace(
            where,
            machine=bare.machine or where.machine,
            wrapped=where.wrapped or bare.wrapped,
            text_from=where.text_from + bare.text_from,
        )
        outside = {} if bare.isolated else {**scope.environment(), **prefix}
        env = {**outside, **{setting.name: setting for setting in bare.added}}
        if bare.script is not None and bare.script.start >= 0:
            self._nested(bare.script, text, env, scope, where, eval_like=name_of(words[0]) == "eval")
            return
        program = name_of(bare.words[0]) if bare.words else ""
        if documents and (program in SHELLS or program in ("ssh", "sbatch")):
            for document in documents:
                isolated = program == "ssh"
                inner = _fresh({} if isolated else env, scope if not isolated else None)
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
        if script is not None:
            self.out.called.append((script.text, script.place))
        self.out.commands.append(
            Command(
                words=bare.words,
                env=env,
                place=text.place(node.start_byte),
                start=text.offset(node.start_byte),
                end=text.offset(node.end_byte),
                wrapped=where.wrapped,
                background=where.background,
                in_loop=where.in_loop,
                machine=where.machine,
                shell_only={n: s for n, s in scope.shell_only().items() if n not in env},
                inside=where.inside,
                text_from=where.text_from,
            )
        )

    def _nested(
        self, word: Word, text: Text, env: dict[str, Setting], scope: Scope, where: _Where, eval_like: bool
    ) -> None:
        """Follows a script that is an argument. Its bytes are looked up again, so that places and edits stay exact."""
        local = _local_span(text, word)
        if local is None:
            return
        start, end = local
        quote = word.quote
        cut = 1 if quote else 0
        nested = text.nested(start + cut, end - cut, escaped=quote == '"')
        if eval_like:
            inner = scope
        else:
            # Inside double quotes the shell outside fills the variables in; inside single quotes it does not.
            inner = _fresh(env, scope if quote != "'" else None)
        self.script(nested, inner, replace(where, inside=quote or where.inside, wrapped=True))


def _fresh(env: dict[str, Setting], visible: Scope | None) -> Scope:
    """The scope of a new shell that gets `env`, with the variables of `visible` filled in by the shell outside."""
    inner = Scope()
    if visible is not None:
        inner.values = dict(visible.values)
        inner.arrays = dict(visible.arrays)
    inner.values.update(env)
    inner.exported = set(env)
    return inner


def _local_span(text: Text, word: Word) -> tuple[int, int] | None:
    """A word's bytes in the text it stands in, found from those in the script."""
    offsets = [text.offset(i) for i in range(len(text.data) + 1)] if text.nested_in else None
    if offsets is None:
        return word.start, word.end
    if word.start not in offsets or word.end not in offsets:
        return None
    return offsets.index(word.start), offsets.index(word.end)
