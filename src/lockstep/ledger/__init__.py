"""The record on disk: one append-only JSON Lines file per process, as docs/ledger.md defines it. Reading
only.
"""

from .lines import ProcessLine, Pulse, Waiting
from .read import LedgerTail, read_directory, read_ledger
from .state import Boundary, Group, Ledger, LedgerError, Mark, Operation, Problem

__all__ = [
    "Boundary",
    "Group",
    "Ledger",
    "LedgerError",
    "LedgerTail",
    "Mark",
    "Operation",
    "Problem",
    "ProcessLine",
    "Pulse",
    "Waiting",
    "read_directory",
    "read_ledger",
]
