"""The verdict on a job whose ledgers say which stack it is of."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from lockstep import stacks
from lockstep.record import Ledger
from lockstep.verdict import Names, Verdict
from lockstep.verdict import judge as judge_by


def judge(ledgers: Sequence[Ledger], **options: Any) -> Verdict:
    """Return the verdict, as `lockstep.verdict.judge` does, by the names of the ledgers' own stack."""
    return judge_by(ledgers, names=names_of(ledgers), **options)


def names_of(ledgers: Sequence[Ledger]) -> Names:
    """Return the names of the stack that the ledgers were recorded on; those of the default stack where they
    do not say, as older ledgers do not; none where nobody here knows it."""
    name = next((x.process.stack for x in ledgers if x.process and x.process.stack), stacks.DEFAULT)
    if name not in stacks.names():
        return Names()
    names: Names = import_module(f"lockstep.stacks.{name}.names").NAMES
    return names
