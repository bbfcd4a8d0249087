"""From the parser's nodes to words: quotes taken off, variables filled in, what only a run would tell kept as
it is written."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from dataclasses import dataclass

from tree_sitter import Node

from lockstep.audit.meter import WORDS_PER_STEP
from lockstep.audit.model import DEFAULT, MAX_TEXT, Part, Place, Value, Word, join, literal, unknown
from lockstep.audit.shell.scope import Scope
from lockstep.audit.shell.text import Layout

_ARITHMETIC = re.compile(r"[\d\s+*/%()-]{1,60}\Z")
MAX_WORDS = 4096


class Text:
    """The bytes that a parser works on, and their way back to the script: the script itself, or a script
    quoted in it."""

    def __init__(self, layout: Layout, data: bytes, offsets: list[int] | None = None) -> None:
        self.layout = layout
        self.data = data
        self._offsets = offsets

    @property
    def nested_in(self) -> bool:
        """Whether this is a script quoted in another."""
        return self._offsets is not None

    def offset(self, byte: int) -> int:
        """A byte of this text as a byte of the script's rows."""
        if self._offsets is None:
            return byte
        return self._offsets[min(byte, len(self._offsets) - 1)]

    def place(self, byte: int) -> Place:
        return Place(self.layout.path, self.layout.line(self.offset(byte)))

    def of(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode(errors="replace")

    def local(self, offset: int) -> int | None:
        """A byte of the script's rows as a byte of this text; None where this text does not have it."""
        if self._offsets is None:
            return offset
        found = bisect_left(self._offsets, offset)
        return found if found < len(self._offsets) and self._offsets[found] == offset else None

    def nested(self, start: int, end: int, escaped: bool) -> Text:
        """The bytes from `start` to `end` as a script of its own, escapes of a double-quoted string taken
        off."""
        raw = self.data[start:end]
        if not escaped:
            return Text(self.layout, raw, [self.offset(start + i) for i in range(len(raw) + 1)])
        data, offsets, i = bytearray(), [], 0
        while i < len(raw):
            if raw[i] == 0x5C and i + 1 < len(raw) and raw[i + 1] in b'"\\$`':
                i += 1
            data.append(raw[i])
            offsets.append(self.offset(start + i))
            i += 1
        offsets.append(self.offset(end))
        return Text(self.layout, bytes(data), offsets)


@dataclass(slots=True)
class _Piece:
    value: Value
    splits: bool = False
    words: list[Word] | None = None


class Expander:
    """Expands nodes of one text."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def words(self, node: Node, scope: Scope) -> list[Word]:
        """The words that one argument becomes: none for an empty variable, several for a list."""
        pieces = self._pieces(node, scope, quoted=False)
        start, end = self.text.offset(node.start_byte), self.text.offset(node.end_byte)
        place = self.text.place(node.start_byte)
        if len(pieces) == 1 and pieces[0].words is not None:
            scope.meter.spend(len(pieces[0].words) / WORDS_PER_STEP)
            return list(pieces[0].words[:MAX_WORDS])
        quote = {"raw_string": "'", "string": '"'}.get(node.type, "")
        values = _fields(
            [
                _Piece(join(self._spaced(p.words)) if p.words is not None else p.value, p.splits)
                for p in pieces
            ]
        )
        if not values and node.type not in ("simple_expansion", "expansion", "command_substitution"):
            values = [Value()]
        scope.meter.spend(len(values) / WORDS_PER_STEP)
        values = values[:MAX_WORDS]
        for value in values:
            scope.meter.spend_on(value)
        return [Word(value, place, start, end, quote) for value in values]

    def value(self, node: Node, scope: Scope) -> Value:
        """The value that an assignment takes: nothing is split."""
        return join(
            join(self._spaced(p.words)) if p.words is not None else p.value
            for p in self._pieces(node, scope, quoted=True)
        )

    @staticmethod
    def _spaced(words: list[Word] | None) -> list[Value]:
        return [
            v for i, word in enumerate(words or []) for v in ((literal(" "),) if i else ()) + (word.value,)
        ]

    def _pieces(self, node: Node, scope: Scope, quoted: bool, depth: int = 0) -> list[_Piece]:
        kind, raw = node.type, self.text.of(node)
        if depth > 40:
            return [_Piece(self._unknown(node))]
        if kind in (
            "word",
            "number",
            "variable_name",
            "special_variable_name",
            "test_operator",
            "regex",
            "extglob_pattern",
        ):
            return [
                _Piece(
                    literal(re.sub(r"\\(\n|.)", lambda m: "" if m[1] == "\n" else m[1], raw, flags=re.DOTALL))
                )
            ]
        if kind == "raw_string":
            return [_Piece(literal(raw[1:-1]))]
        if kind == "string_content":
            return [_Piece(literal(re.sub(r"\\([\"\\$`\n])", lambda m: "" if m[1] == "\n" else m[1], raw)))]
        if kind == "ansi_c_string":
            return [
                _Piece(
                    literal(
                        raw[2:-1]
                        .replace("\\n", "\n")
                        .replace("\\t", "\t")
                        .replace("\\'", "'")
                        .replace("\\\\", "\\")
                    )
                )
            ]
        if kind in ("string", "concatenation", "translated_string", "command_name"):
            return self._children(
                node, scope, quoted or (kind != "concatenation" and kind != "command_name"), depth
            )
        if kind == "simple_expansion":
            name = raw[1:]
            if name in ("@", "*"):
                return self._all_arguments(node, scope)
            return [_Piece(self._variable(name, node, scope), splits=not quoted)]
        if kind == "expansion":
            return self._expansion(node, raw, scope, quoted, depth)
        if kind == "arithmetic_expansion":
            return [_Piece(self._arithmetic(node, raw, scope))]
        return [_Piece(self._unknown(node))]

    def _children(self, node: Node, scope: Scope, quoted: bool, depth: int) -> list[_Piece]:
        pieces: list[_Piece] = []
        at = node.start_byte
        for child in node.children:
            # The parser makes no node for blanks between two expansions inside quotes.
            if child.start_byte > at and quoted:
                pieces.append(
                    _Piece(
                        literal(
                            self.text.data[at : child.start_byte].decode(errors="replace").replace("\\\n", "")
                        )
                    )
                )
            at = child.end_byte
            if child.is_named:
                pieces.extend(self._pieces(child, scope, quoted, depth + 1))
            elif child.type not in ('"', "$"):
                pieces.append(_Piece(literal(self.text.of(child))))
        return pieces or [_Piece(Value())]

    def _variable(self, name: str, node: Node, scope: Scope) -> Value:
        if name in scope.arrays:
            words = scope.arrays[name]
            return words[0].value if words else Value()
        if name in ("?", "$", "!", "#", "-", "_", "RANDOM", "SRANDOM"):
            return self._unknown(node)
        return scope.get(name)

    def _all_arguments(self, node: Node, scope: Scope) -> list[_Piece]:
        if scope.arguments is None:
            return [_Piece(unknown(self.text.of(node), "arguments of the script"))]
        place = self.text.place(node.start_byte)
        return [_Piece(Value(), words=[Word(v, place) for v in scope.arguments])]

    def _expansion(self, node: Node, raw: str, scope: Scope, quoted: bool, depth: int) -> list[_Piece]:
        inner = raw[2:-1]
        if match := re.fullmatch(r"(\w+)\[[@*]\]", inner):
            if match[1] in scope.arrays:
                return [_Piece(Value(), words=scope.arrays[match[1]])]
            return [_Piece(unknown(raw, f"environment {match[1]}"))]
        if inner in ("@", "*"):
            return self._all_arguments(node, scope)
        if re.fullmatch(r"\w+", inner):
            return [_Piece(self._variable(inner, node, scope), splits=not quoted)]
        if match := re.match(r"(\w+)(:?[-=?+])", inner):
            name, operator = match[1], match[2]
            value = self._variable(name, node, scope) if scope.has(name) or name in scope.arrays else None
            default = [
                piece
                for child in node.named_children[1:]
                for piece in self._pieces(child, scope, quoted, depth + 1)
            ]
            if operator.endswith("+"):
                return default if value is not None and value.text else [_Piece(Value())]
            if value is not None and (value.text or not operator.startswith(":")):
                return [_Piece(value, splits=not quoted)]
            if operator.endswith("?"):
                return [_Piece(scope.get(name), splits=not quoted)]
            # Unless the environment has it, which nobody here can tell: the script's own choice is what its
            # author runs.
            return [_as_default(piece) for piece in default] or [_Piece(Value())]
        return [_Piece(self._unknown(node))]

    def _arithmetic(self, node: Node, raw: str, scope: Scope) -> Value:
        filled = re.sub(
            r"\$?\{?([A-Za-z_]\w*)\}?",
            lambda m: str(_number(scope, m[1])),
            raw[3:-2] if raw.startswith("$((") else raw[2:-1],
        )
        result = _evaluate(filled)
        return self._unknown(node) if result is None else literal(str(result))

    def _unknown(self, node: Node) -> Value:
        raw = " ".join(self.text.of(node).split())
        place = self.text.place(node.start_byte)
        return unknown(raw[:400], f"{place} byte {self.text.offset(node.start_byte)}")


def _as_default(piece: _Piece) -> _Piece:
    """A piece that the environment or an argument of the script may replace."""
    parts = tuple(Part(p.text, p.known, p.origin or DEFAULT) for p in piece.value.parts)
    return _Piece(Value(parts), piece.splits, piece.words)


def _number(scope: Scope, name: str) -> int | str:
    number = scope.get(name).number()
    return "?" if number is None else number


def _evaluate(text: str) -> int | None:
    """Whole-number arithmetic with + - * / % and brackets; None for anything else."""
    if not _ARITHMETIC.match(text) or "**" in text:
        return None
    try:
        return _compute(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _compute(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return -_compute(node.operand) if isinstance(node.op, ast.USub) else _compute(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _compute(node.left), _compute(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        # The shell cuts towards zero, Python rounds down.
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        if isinstance(node.op, ast.Div):
            return quotient
        if isinstance(node.op, ast.Mod):
            return left - right * quotient
    raise ValueError("not whole-number arithmetic")


def _fields(pieces: list[_Piece]) -> list[Value]:
    """Pieces put together, cut at the blanks of those that the shell splits."""
    fields: list[list[Part]] = []
    open_field = False
    size = 0
    for piece in pieces:
        size += sum(len(part.text) for part in piece.value.parts)
        if size > MAX_TEXT:
            return [unknown("(too long)", "too long")]
        if not piece.splits:
            if not open_field:
                fields.append([])
                open_field = True
            fields[-1].extend(piece.value.parts)
            continue
        for part in piece.value.parts:
            chunks = re.split(r"(\s+)", part.text) if part.known else [part.text]
            for chunk in chunks:
                if not chunk:
                    continue
                if part.known and chunk.isspace():
                    open_field = False
                    continue
                if not open_field:
                    fields.append([])
                    open_field = True
                fields[-1].append(Part(chunk, part.known, part.origin))
    return [join([Value(tuple(parts))]) for parts in fields]
