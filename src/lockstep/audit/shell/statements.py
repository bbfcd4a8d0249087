"""Follows the statements of a script: blocks, branches, loops, pipelines, functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from tree_sitter import Node

from lockstep.audit.meter import Meter
from lockstep.audit.model import AuditError, Command, Place, Setting, Word, unknown
from lockstep.audit.shell.assign import assign, declare
from lockstep.audit.shell.scope import Scope
from lockstep.audit.shell.syntax import PARSE_LIMIT_S, Syntax
from lockstep.audit.shell.words import Expander, Text

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
class Where:
    """The surroundings of a statement."""

    depth: int = 0
    background: bool = False
    in_loop: bool = False
    machine: str = ""
    inside: str = ""
    wrapped: bool = False
    text_from: tuple[str, ...] = ()


class Statements:
    """Follows statements of every kind; what a simple command does is left to a subclass."""

    def command(self, node: Node, text: Text, scope: Scope, where: Where, documents: list[Node]) -> None:
        """Follows one simple command. `documents`: the bodies of its heredocs."""
        raise NotImplementedError

    def __init__(self) -> None:
        self.out = Followed()
        self.meter = Meter()
        self._syntax = Syntax()

    def script(self, text: Text, scope: Scope, where: Where) -> None:
        root = self._syntax.tree(text.data)
        if root is None:
            raise AuditError(
                f"{text.place(0)}: cannot be parsed in {PARSE_LIMIT_S} s of CPU: expected a launch script"
            )
        if root.has_error:
            self._note_errors(root, text)
        self.block(root, text, scope, where)

    def _note_errors(self, root: Node, text: Text) -> None:
        stack = [root]
        while stack and len(self.out.errors) < 20:
            node = stack.pop()
            if node.type == "ERROR" or node.is_missing:
                # A backslash on a script's last line continues into nothing: no harm done.
                end = len(text.data.rstrip())
                if text.data[end - 1 : end] == b"\\" and node.start_byte >= end - 2 and not node.is_missing:
                    continue
                self.out.errors.append(text.place(node.start_byte))
            elif node.has_error:
                stack.extend(reversed(node.children))

    def block(self, node: Node, text: Text, scope: Scope, where: Where) -> None:
        children = node.children
        for i, child in enumerate(children):
            if child.is_named:
                after = children[i + 1].type if i + 1 < len(children) else ""
                self.statement(child, text, scope, replace(where, background=True) if after == "&" else where)

    def statement(self, node: Node, text: Text, scope: Scope, where: Where) -> None:
        self.meter.place = partial(text.place, node.start_byte)
        self.meter.spend(1)
        if where.depth > _MAX_DEPTH:
            return
        where = replace(where, depth=where.depth + 1)
        kind = node.type
        if kind == "command":
            self.command(node, text, scope, where, [])
        elif kind == "variable_assignment":
            assign(node, text, scope)
        elif kind == "variable_assignments":
            for child in node.named_children:
                assign(child, text, scope)
        elif kind == "declaration_command":
            declare(node, text, scope)
        elif kind == "unset_command":
            for child in node.named_children:
                scope.unset(text.of(child))
        elif kind == "redirected_statement":
            self._redirected(node, text, scope, where)
        elif kind == "pipeline":
            for child in node.named_children:
                self.statement(child, text, scope.copy(), where)
        elif kind == "list":
            inner = scope.copy() if where.background else scope
            for child in node.named_children:
                self.statement(child, text, inner, where)
        elif kind == "subshell":
            self.block(node, text, scope.copy(), where)
        elif kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                scope.functions[text.of(name)] = (body, text)
        elif kind == "if_statement":
            self._if(node, text, scope, where)
        elif kind == "case_statement":
            self._case(node, text, scope, where)
        elif kind in ("while_statement", "c_style_for_statement"):
            self.block(node, text, scope, replace(where, in_loop=True))
        elif kind == "for_statement":
            self._for(node, text, scope, where)
        elif kind in _BLOCKS:
            self.block(node, text, scope, where)

    def _redirected(self, node: Node, text: Text, scope: Scope, where: Where) -> None:
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
            self.command(body, text, scope, where, bodies)
        else:
            self.statement(body, text, scope, where)
        # `cmd <<EOF && next` hangs the rest of its line below the redirection.
        for child in documents:
            if child.type in ("pipeline", "list", "command"):
                self.statement(child, text, scope, where)

    def _if(self, node: Node, text: Text, scope: Scope, where: Where) -> None:
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
                self.block(child, text, current, where)
            elif child.is_named:
                self.statement(child, text, current, where)
        scope.merge(branches if complete else [*branches, scope.copy()], text.place(node.start_byte).line)

    def _case(self, node: Node, text: Text, scope: Scope, where: Where) -> None:
        branches = [scope.copy()]
        for child in node.named_children:
            if child.type == "case_item":
                branch = scope.copy()
                branches.append(branch)
                for statement in child.named_children[1:]:
                    self.statement(statement, text, branch, where)
        scope.merge(branches, text.place(node.start_byte).line)

    def _for(self, node: Node, text: Text, scope: Scope, where: Where) -> None:
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
            self.statement(body, text, scope, where)
            return
        for word in words[:_MAX_TURNS]:
            scope.set(Setting(text.of(variable), word.value, word.place, "loop"))
            self.statement(body, text, scope, where)
