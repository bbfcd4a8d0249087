"""Cures, by name: files that ms-swift loads with `--external_plugins`, and settings."""

from __future__ import annotations

from pathlib import Path

_FILES = {"independent ranks": "independent_ranks.py"}


def plugin(remedy: str) -> Path | None:
    """The file of a remedy that is a plugin; None for one that is a setting. Raises KeyError for a name unknown."""
    return Path(__file__).parent / _FILES[remedy]
