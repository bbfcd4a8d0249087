"""Which process groups each known release makes, in which order: enough to tell from two numbers whose group
it was.
"""

from __future__ import annotations

from lockstep.diagnose.groups.match import Reading, readings
from lockstep.diagnose.groups.vllm import RELEASES, Kind, Layout, MadeGroup, Release, made_groups

__all__ = ["RELEASES", "Kind", "Layout", "MadeGroup", "Reading", "Release", "made_groups", "readings"]
