"""What a dump says once: its version, and the ranks of each group."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from .errors import MAX_ITEMS, Malformed
from .model import Dump

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,6})\Z")
_RANKS = re.compile(r"\[(?:\d{1,9}(?:, ?\d{1,9})*)?\]\Z")
MAJOR = 2


def read_header(top: dict[str, Any], dump: Dump) -> None:
    """Fills the dump's version and groups. Raises Malformed."""
    version = top.get("version")
    known = _VERSION.match(version) if isinstance(version, str) else None
    if known is None or not isinstance(version, str):
        raise Malformed(None, "version: expected two numbers such as 2.10; is this a flight recorder dump?")
    if int(known[1]) != MAJOR:
        raise Malformed(None, f"version {version}: expected {MAJOR}.x")
    dump.version = version
    config = top.get("pg_config", {})
    if type(config) is not dict:
        raise Malformed(None, "pg_config: expected a dict")
    for name, group in config.items():
        if type(group) is not dict:
            raise Malformed(None, "pg_config: expected a dict for each group")
        ranks = _members(group.get("ranks"))
        if ranks and type(name) is str:  # gloo's groups are there as one, without a name and without ranks
            dump.ranks[name] = ranks


def _members(ranks: Any) -> tuple[int, ...]:
    if type(ranks) is str:
        return _cached(ranks) if len(ranks) < 1 << 14 else _parsed(ranks)
    if (
        type(ranks) is list
        and all(type(rank) is int and 0 <= rank < 10**9 for rank in ranks)
        and len(ranks) <= MAX_ITEMS
    ):
        return tuple(ranks)
    raise Malformed(None, "pg_config: ranks: expected a list of ranks")


def _parsed(ranks: str) -> tuple[int, ...]:
    if not _RANKS.match(ranks):
        raise Malformed(None, "pg_config: ranks: expected a list of ranks")
    members = tuple(int(rank) for rank in ranks[1:-1].split(",") if rank)
    if len(set(members)) != len(members):
        raise Malformed(None, "pg_config: ranks: expected each rank once")
    return members


_cached = lru_cache(maxsize=1024)(_parsed)
