"""Variables: assignments, `export`, `declare`."""

from __future__ import annotations

from tree_sitter import Node

from lockstep.audit.model import MAX_TEXT, Setting, Value, join
from lockstep.audit.shell.scope import Scope
from lockstep.audit.shell.words import MAX_WORDS, Expander, Text


def assign(node: Node, text: Text, scope: Scope, how: str = "export") -> Setting | None:
    """Makes one assignment in `scope`; gives it back unless it is a list or an element of one."""
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None or name.type != "variable_name":
        return None
    key = text.of(name)
    appends = any(child.type == "+=" for child in node.children)
    expander = Expander(text)
    if value is not None and value.type == "array":
        items = [child for child in value.named_children if child.type != "comment"]
        words = scope.arrays.get(key, []) if appends else []
        words = words + [word for child in items for word in expander.words(child, scope)]
        scope.unset(key)
        scope.arrays[key] = words[:MAX_WORDS]
        return None
    result = expander.value(value, scope) if value is not None else Value()
    if appends and len(scope.get(key).text) + len(result.text) < MAX_TEXT:
        result = join((scope.get(key), result))
    start, end = text.offset(node.start_byte), text.offset(node.end_byte)
    setting = Setting(key, result, text.place(node.start_byte), how, start, end)
    scope.set(setting)
    return setting


def declare(node: Node, text: Text, scope: Scope) -> None:
    """Follows `export`, `declare`, `local`, `readonly`."""
    raw = [text.of(child) for child in node.children]
    flags = [word for word in raw[1:] if word.startswith("-")]
    export = raw[0] == "export" or (raw[0] in ("declare", "typeset") and any("x" in flag for flag in flags))
    for child in node.named_children:
        if child.type == "variable_assignment":
            setting = assign(child, text, scope)
            if setting and export:
                scope.exported.add(setting.name)
        elif child.type == "variable_name" and export:
            scope.exported.add(text.of(child))
