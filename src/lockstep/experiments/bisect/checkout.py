"""A copy of a checkout to build from.

Never built in place: setuptools leaves `build/` there, and the next commit would be made of the last one's
files, too; and uv remembers what a folder needs by the times of a few of its files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_MADE = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", ".git", ".venv")
"""What is not copied where git does not say which files belong to the tree."""
_MADE_FILE = re.compile(r"^(?:build|dist|[^/]*\.egg-info)/")
"""The same of files that git neither has nor ignores."""


def copy(source: Path, target: Path) -> Path:
    """Makes `target` the tree at `source`, changed and new files included, and returns its absolute path.
    Raises OSError.

    Of git's it has what git does not ignore; builds that ask git for a version get its answer for `source`.
    """
    shutil.rmtree(target, ignore_errors=True)
    tracked = _git(source, "ls-files", "-z", "--cached")
    new = _git(source, "ls-files", "-z", "--others", "--exclude-standard")
    home = _git(source, "rev-parse", "--absolute-git-dir")
    if tracked is None or new is None or home is None:
        shutil.copytree(source, target, symlinks=True, ignore=_MADE, copy_function=shutil.copy)
        return target.resolve()
    target.mkdir(parents=True)
    wanted = [*tracked.split("\0"), *(name for name in new.split("\0") if not _MADE_FILE.search(name))]
    for name in filter(None, wanted):
        _copy_entry(source / name, target / name)
    (target / ".git").write_text(f"gitdir: {home.rstrip()}\n")
    return target.resolve()


def describe(source: Path) -> str:
    """Which commit a checkout is at, as git describes it; its folder's name where it is not git's."""
    told = _git(source, "describe", "--tags", "--always", "--dirty")
    return told.strip() if told and told.strip() else source.resolve().name


def _copy_entry(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():  # a submodule
        shutil.copytree(source, target, symlinks=True, ignore=_MADE, copy_function=shutil.copy)
    elif source.is_symlink() or source.exists():  # else it has been deleted and not committed
        # The time of the copy, not of the original: by the times of files uv tells what it knows already.
        shutil.copy(source, target, follow_symlinks=False)


def _git(source: Path, *words: str) -> str | None:
    """What git answers; None where the folder is not the top of a checkout of its, or there is no git."""
    if not (source / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(source), *words]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None
