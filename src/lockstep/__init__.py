"""Do all ranks of a distributed job issue the same collectives?"""

from __future__ import annotations

__version__ = "0.1.0"
