"""The record on disk: one append-only JSON Lines file per process, as docs/ledger.md defines it. Reading
only.
"""

from .format import ProcessLine, Pulse, Waiting
from .reader import LedgerTail, read_directory, read_ledger
from .state import PULSE_S, SILENT_S, Boundary, Group, Ledger, LedgerError, Mark, Operation, Problem

__all__ = [
    "PULSE_S",
    "SILENT_S",
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
