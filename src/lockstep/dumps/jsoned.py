"""A dump in JSON, as torch 2.6 and later write it on request, into a Dump."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from .collect import Collector, Like
from .errors import Malformed
from .header import read_header
from .records import Work

_MAX_HEADER = 8 << 20
_KEPT = 1 << 14
_AT = re.compile(r"byte (\d+)")
_ENTRIES = re.compile(r'"entries"\s*:\s*\[\s*')
_NEXT = re.compile(r"[\s,]*")
_object = json.JSONDecoder(parse_int=len, parse_float=len)
"""Only finds where an object ends: long numbers are not worked out."""


class _Record(msgspec.Struct, gc=False):
    """Parts that are lists stay as they are written: they are alike in most records, and looked at once."""

    process_group: msgspec.Raw
    profiling_name: str
    collective_seq_id: int
    state: str
    pg_id: int = 0
    record_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    retired: bool = False
    time_created_ns: int = 0
    input_sizes: msgspec.Raw = msgspec.Raw(b"[]")
    output_sizes: msgspec.Raw = msgspec.Raw(b"[]")
    input_dtypes: msgspec.Raw = msgspec.Raw(b"[]")
    output_dtypes: msgspec.Raw = msgspec.Raw(b"[]")
    frames: msgspec.Raw = msgspec.Raw(b"[]")


class _Top(msgspec.Struct):
    version: str = ""
    pg_config: msgspec.Raw = msgspec.Raw(b"{}")
    entries: list[_Record] = []


class _Head(msgspec.Struct):
    """The same without the records."""

    version: str = ""
    pg_config: msgspec.Raw = msgspec.Raw(b"{}")


_top = msgspec.json.Decoder(_Top)
_head = msgspec.json.Decoder(_Head)
_record = msgspec.json.Decoder(_Record)
_RAW = ("process_group", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "frames")
_ALIKE = _RAW[:-1]
_PLAIN = (
    "profiling_name",
    "collective_seq_id",
    "state",
    "pg_id",
    "record_id",
    "p2p_seq_id",
    "is_p2p",
    "retired",
    "time_created_ns",
)


def read_json(data: bytes, collector: Collector) -> None:
    """Raises Malformed, also where the records before the damage have been taken."""
    damage = None
    try:
        top = _decode(_top, data, "the dump")
    except Malformed as error:
        damage, top = error, _before(data)
    if top.version or not damage:
        if len(bytes(top.pg_config)) > _MAX_HEADER:
            raise Malformed(None, f"pg_config: more than {_MAX_HEADER} bytes")
        config = _decode(_any, bytes(top.pg_config), "pg_config")
        header = {"version": top.version, "pg_config": config}
        read_header(header, collector.dump, collector.operations.ranks)
    last: dict[int, _Record] = {}
    work = Work()
    try:
        _take(top.entries, collector, work, last)
    finally:
        for trace in collector.dump.traces.values():
            if id(trace) in last and last[id(trace)].collective_seq_id == trace.seqs[-1]:
                collector.locate(trace, _entry(last[id(trace)], work), None)
    if damage:
        raise damage


def _before(data: bytes) -> _Top:
    """Returns what can be read of a dump that is damaged: the records before the damage, and the header if
    only a record is not what it should be.

    torch writes the keys in alphabetical order, so what follows the records is lost with them.
    """
    entries: list[_Record] = []
    try:
        head = _head.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        head = _Head()
    text = data.decode("utf-8", "replace")
    begin = _ENTRIES.search(text)
    at = begin.end() if begin else len(text)
    try:
        while text[at : at + 1] == "{":
            _, end = _object.raw_decode(text, at)
            entries.append(_record.decode(text[at:end].encode()))
            at = end + len(_NEXT.match(text, end)[0])  # type: ignore[index]  # it matches nothing, too
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    return _Top(head.version, head.pg_config, entries)


def _take(entries: list[_Record], collector: Collector, work: Work, last: dict[int, _Record]) -> None:
    """Adds records to their traces. `last` is filled with the last one of each trace that is like another."""
    known: dict[tuple[Any, ...], Like | None] = {}
    for record in entries:
        key = (
            *(bytes(getattr(record, name)) for name in _ALIKE),
            record.pg_id, record.profiling_name, record.state, record.retired, record.is_p2p,
        )  # fmt: skip
        if key not in known:
            added = collector.add(_entry(record, work), None)
            if added.done and len(known) < _KEPT:
                known[key] = added.like
            continue
        collector.dump.records += 1
        if (like := known[key]) is None:
            continue
        trace, operation, totals = like
        if not 0 <= record.collective_seq_id < 1 << 62:
            raise Malformed(None, "a record's collective_seq_id: expected an integer of 0 or more")
        trace.seqs.append(record.collective_seq_id)
        trace.calls.append(operation)
        last[id(trace)] = record
        if totals:
            trace.uneven[record.collective_seq_id] = totals


_any = msgspec.json.Decoder(Any)


def _entry(record: _Record, work: Work) -> dict[str, Any]:
    entry: dict[str, Any] = {key: getattr(record, key) for key in _PLAIN}
    for key in _RAW:
        raw = bytes(getattr(record, key))
        work.spend(len(raw), None)
        entry[key] = _decode(_any, raw, key)
    return entry


def _decode(decoder: msgspec.json.Decoder[Any], data: bytes, what: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        at = _AT.search(str(error))
        raise Malformed(
            int(at[1]) if at and what == "the dump" else None, f"expected {what} in JSON ({error})"
        ) from None
