"""Cures, by name: files that ms-swift loads with `--external_plugins`, and settings."""

from __future__ import annotations

from pathlib import Path

from lockstep.remedies.model import Tried
from lockstep.remedies.tried import TRIED


def tried(name: str) -> Tried:
    """Raises KeyError for a name unknown."""
    return {remedy.name: remedy for remedy in TRIED}[name]


def plugin(remedy: str) -> Path | None:
    """The file of a remedy that is a plugin; None for one that is a setting. Raises KeyError for a name
    unknown."""
    file = tried(remedy).file
    return Path(__file__).parent / file if file else None
