"""A reader for the part of the pickle format that plain data needs. It holds no opcode that names, imports or
calls anything.

torch writes dumps with `torch::jit::Pickler` (protocol 2); the opcodes of Python's own pickler for the same
data are read, too, so that a dump which somebody loaded and stored again is still a dump. Source:
`torch/csrc/jit/serialization/pickler.cpp`, and Python's `pickletools`.
"""

from __future__ import annotations

import struct
from typing import Any

from .errors import MAX_DEPTH, MAX_ITEMS, MAX_MEMO, MAX_OBJECTS, MAX_TEXT, Malformed

_double = struct.Struct(">d").unpack_from
_NAMES = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x52: "REDUCE", 0x62: "BUILD", 0x69: "INST", 0x6F: "OBJ",
    0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x50: "PERSID",
    0x51: "BINPERSID", 0x8B: "LONG4", 0x8E: "BINBYTES8", 0x96: "BYTEARRAY8",
}  # fmt: skip


class Machine:
    """Runs a pickle, one opcode after another. Stops at its end, or wherever `watch` containers are open and
    one has been filled.

    `stack` holds the values of the innermost open container, `outer` those of the containers around it.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.ended = False
        self._made = 0

    def run(self, watch: int = -1) -> None:
        """Goes on from `pos` until the end, or until a dict has been filled (SETITEMS) or a container opened
        (MARK) with `watch` containers open. Raises Malformed, and nothing else, whatever the bytes are.
        """
        try:
            self._run(watch)
        except (IndexError, struct.error):
            # Reading past the end, or popping from an empty stack.
            end = self.pos >= len(self.data) - 9
            what = (
                "the file ends here: expected more of a pickle"
                if end
                else "an operation without its operands"
            )
            raise Malformed(min(self.pos, len(self.data)), what) from None

    def _run(self, watch: int) -> None:
        data, memo, outer = self.data, self.memo, self.outer
        stack = self.stack
        pos = self.pos
        try:
            while True:
                self.pos = pos
                op = data[pos]
                if op == 0x68:  # BINGET
                    stack.append(memo[data[pos + 1]])
                    pos += 2
                elif op == 0x6A:  # LONG_BINGET
                    stack.append(memo[int.from_bytes(self._take(pos + 1, 4), "little")])
                    pos += 5
                elif op == 0x28:  # MARK
                    if len(outer) >= MAX_DEPTH:
                        raise Malformed(pos, f"containers nested deeper than {MAX_DEPTH}")
                    outer.append(stack)
                    self.stack = stack = []
                    pos += 1
                    if len(outer) == watch:
                        self.pos = pos
                        return
                elif op == 0x4B:  # BININT1
                    stack.append(data[pos + 1])
                    pos += 2
                elif op == 0x75:  # SETITEMS
                    items, stack = stack, outer.pop()
                    self.stack = stack
                    self._count(len(items), pos)
                    _fill(stack[-1], items, pos)
                    pos += 1
                    if len(outer) == watch:
                        self.pos = pos
                        return
                elif op == 0x65:  # APPENDS
                    items, stack = stack, outer.pop()
                    self.stack = stack
                    self._count(len(items), pos)
                    _list(stack[-1], pos).extend(items)
                    pos += 1
                elif op == 0x5D:  # EMPTY_LIST
                    stack.append([])
                    pos += 1
                elif op == 0x7D:  # EMPTY_DICT
                    stack.append({})
                    pos += 1
                elif op == 0x58:  # BINUNICODE
                    pos = self._text(pos, 4, stack)
                elif op == 0x71:  # BINPUT
                    memo[data[pos + 1]] = stack[-1]
                    pos += 2
                elif op == 0x72:  # LONG_BINPUT
                    memo[int.from_bytes(self._take(pos + 1, 4), "little")] = stack[-1]
                    pos += 5
                elif op == 0x4D:  # BININT2
                    stack.append(int.from_bytes(self._take(pos + 1, 2), "little"))
                    pos += 3
                elif op == 0x4A:  # BININT
                    stack.append(int.from_bytes(self._take(pos + 1, 4), "little", signed=True))
                    pos += 5
                elif op == 0x8A:  # LONG1
                    length = data[pos + 1]
                    if length > 8:
                        raise Malformed(pos, f"an integer of {length} bytes: expected at most 8")
                    stack.append(int.from_bytes(self._take(pos + 2, length), "little", signed=True))
                    pos += 2 + length
                elif op == 0x4E:  # NONE
                    stack.append(None)
                    pos += 1
                elif op == 0x88 or op == 0x89:  # NEWTRUE, NEWFALSE
                    stack.append(op == 0x88)
                    pos += 1
                elif op == 0x86:  # TUPLE2
                    second, first = stack.pop(), stack.pop()
                    # Of strings only: tuples in tuples would nest without end, at two bytes each.
                    if type(first) is not str or type(second) is not str:
                        raise Malformed(pos, "a pair: expected one of strings")
                    stack.append((first, second))
                    pos += 1
                elif op == 0x2E:  # STOP
                    self.ended = True
                    self.pos = pos + 1
                    return
                else:
                    pos = self._seldom(op, pos)
                    stack = self.stack
                if len(stack) > MAX_ITEMS:
                    raise Malformed(self.pos, f"more than {MAX_ITEMS} objects in a container")
                if len(memo) > MAX_MEMO:
                    raise Malformed(self.pos, f"references to more than {MAX_MEMO} objects")
        except KeyError as error:
            raise Malformed(self.pos, f"a reference to object {error}, which is not there") from None

    def _seldom(self, op: int, pos: int) -> int:
        stack, data = self.stack, self.data
        if op == 0x80:  # PROTO
            if data[pos + 1] > 5:
                raise Malformed(pos, f"pickle protocol {data[pos + 1]}: expected at most 5")
            return pos + 2
        if op == 0x47:  # BINFLOAT
            stack.append(_double(data, pos + 1)[0])
            return pos + 9
        if op == 0x8C:  # SHORT_BINUNICODE
            return self._text(pos, 1, stack)
        if op == 0x94:  # MEMOIZE
            self.memo[len(self.memo)] = stack[-1]
            return pos + 1
        if op == 0x95:  # FRAME: a hint for readers of streams
            return pos + 9
        if op == 0x73:  # SETITEM
            value = stack.pop()
            key = stack.pop()
            self._count(2, pos)
            _fill(stack[-1], [key, value], pos)
            return pos + 1
        if op == 0x61:  # APPEND
            value = stack.pop()
            self._count(1, pos)
            _list(stack[-1], pos).append(value)
            return pos + 1
        name = f" ({_NAMES[op]})" if op in _NAMES else ""
        raise Malformed(pos, f"opcode 0x{op:02x}{name}: expected one of those that plain data needs")

    def _count(self, objects: int, pos: int) -> None:
        self._made += objects
        if self._made > MAX_OBJECTS:
            raise Malformed(pos, f"more than {MAX_OBJECTS} objects")

    def _take(self, start: int, length: int) -> bytes:
        taken = self.data[start : start + length]
        if len(taken) != length:
            raise Malformed(len(self.data), "the file ends here: expected more of a pickle")
        return taken

    def _text(self, pos: int, width: int, stack: list[Any]) -> int:
        length = int.from_bytes(self._take(pos + 1, width), "little")
        if length > MAX_TEXT:
            raise Malformed(pos, f"a string of {length} bytes: expected at most {MAX_TEXT}")
        start = pos + 1 + width
        stack.append(self._take(start, length).decode("utf-8", "replace"))
        return start + length


def _fill(target: Any, items: list[Any], pos: int) -> None:
    if type(target) is not dict:
        raise Malformed(pos, "items for something that is not a dict")
    if len(items) % 2:
        raise Malformed(pos, "a key without a value")
    for key in items[::2]:
        # Strings hash with a secret: nobody can choose keys that collide.
        if type(key) is not str:
            raise Malformed(pos, f"a {type(key).__name__} as a key: expected a string")
    target.update(zip(items[::2], items[1::2], strict=True))
    if len(target) > MAX_ITEMS:
        raise Malformed(pos, f"more than {MAX_ITEMS} objects in a dict")


def _list(target: Any, pos: int) -> list[Any]:
    if type(target) is not list:
        raise Malformed(pos, "items for something that is not a list")
    if len(target) > MAX_ITEMS:
        raise Malformed(pos, f"more than {MAX_ITEMS} objects in a list")
    return target
