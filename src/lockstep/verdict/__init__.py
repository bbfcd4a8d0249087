"""Ledgers to a verdict, by the rules in docs/ledger.md. Pure: no files, no clock."""

from .judge import SLEEP_LIMIT_S, judge
from .model import BoundaryView, GroupView, Kind, RankState, RankView, Verdict

__all__ = [
    "SLEEP_LIMIT_S",
    "BoundaryView",
    "GroupView",
    "Kind",
    "RankState",
    "RankView",
    "Verdict",
    "judge",
]
