"""Ledgers to a verdict, by the rules in docs/ledger.md. Pure: no files, no clock."""

from .judge import PATIENCE_S, judge
from .model import BoundaryView, GroupView, Kind, RankState, RankView, Verdict
from .names import Names

__all__ = [
    "PATIENCE_S",
    "BoundaryView",
    "GroupView",
    "Kind",
    "Names",
    "RankState",
    "RankView",
    "Verdict",
    "judge",
]
