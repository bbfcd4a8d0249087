"""What a dump says once: its version, and the ranks of each group."""

from __future__ import annotations

import re
from typing import Any

from .errors import MAX_MEMBERS, MAX_RANKS, Malformed
from .model import Dump, RankLists

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,6})\Z")
_RANKS = re.compile(r"\[(?:\d{1,9}(?:, ?\d{1,9})*)?\]\Z")
MAJOR = 2


def read_header(top: dict[str, Any], dump: Dump, lists: RankLists) -> None:
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
        ranks = _members(group.get("ranks"), lists)
        if ranks and type(name) is str:  # gloo's groups are there as one, without a name and without ranks
            dump.ranks[name] = ranks


def _members(ranks: Any, lists: RankLists) -> tuple[int, ...]:
    if type(ranks) is not str:
        raise Malformed(None, "pg_config: ranks: expected a list of ranks in a string")
    known = lists.by_text.get(ranks)
    if known is None:
        known = lists.by_text[ranks] = lists.once(_parsed(ranks))
        if lists.total > MAX_MEMBERS:
            raise Malformed(None, f"pg_config: ranks: more than {MAX_MEMBERS} in the groups of these dumps")
    return known


def _parsed(ranks: str) -> tuple[int, ...]:
    if ranks.count(",") >= MAX_RANKS:
        raise Malformed(None, f"pg_config: ranks: more than {MAX_RANKS} in a group")
    if not _RANKS.match(ranks):
        raise Malformed(None, "pg_config: ranks: expected a list of ranks")
    members = tuple(int(rank) for rank in ranks[1:-1].split(",") if rank)
    if len(set(members)) != len(members):
        raise Malformed(None, "pg_config: ranks: expected each rank once")
    return members
