"""From the outside: what is left of a job that hung, its logs, to a named cause. Needs nothing of the
stack.
"""

from __future__ import annotations

from lockstep.diagnose.diagnose import conclude, diagnose
from lockstep.diagnose.input_files import InputError
from lockstep.diagnose.model import CAUSES, Cause, CauseId, Diagnosis, Evidence

__all__ = ["CAUSES", "Cause", "CauseId", "Diagnosis", "Evidence", "InputError", "conclude", "diagnose"]
