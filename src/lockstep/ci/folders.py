"""Files of a run's folder, without following any link: a link may lead anywhere on the host.

Every folder is opened relative to the one above it, and every file relative to its folder, with O_NOFOLLOW: a
name that is exchanged for a link meanwhile is an error, not another file.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

FILES = 5000
"""Most entries of one folder, and most files of a run."""
DEPTH = 8
"""Most folders in folders below a room."""
ROOMS = ("evidence", "ledgers", "logs")
"""In order of worth: what comes first is kept when there is too much."""

_STAMP = re.compile(rb"\d{8}-\d{6}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Found:
    """A file, open for reading while it is the newest one yielded, or why it is left out."""

    place: tuple[bytes, ...]
    """The names of its folders, from the run's folder on, and its own."""
    handle: int = -1
    why_not: str = ""


def files(runs: bytes) -> Iterator[Found]:
    """Yield the files of `runs` and of the newest run in it, those of most worth first."""
    try:
        top = os.open(runs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with _closed(top):
        for name in (b"summary.json", b"junit.xml"):
            yield from _file(top, (), name)
        stamps = [name for name in _names(top) if _STAMP.fullmatch(name) and _is_folder(top, name)]
        if not stamps:
            return
        try:
            newest = os.open(max(stamps), _FOLDER, dir_fd=top)
        except OSError as error:
            yield Found((max(stamps),), why_not=error.strerror or "cannot be opened")
            return
        with _closed(newest):
            arms = _names(newest)
            for arm in arms:
                with _opened(newest, arm) as folder:
                    names = [] if folder is None else _names(folder)
                    for name in (name for name in names if name.endswith(b".command.json")):
                        yield from _file(folder or 0, (arm,), name)
            for room in ROOMS:
                for arm in arms:
                    with _opened(newest, arm) as folder:
                        if folder is not None:
                            yield from _entry(folder, (arm,), room.encode())


def _entry(parent: int, place: tuple[bytes, ...], name: bytes) -> Iterator[Found]:
    """Yield the file `name`, or the files in the folder `name`."""
    if not _is_folder(parent, name):
        yield from _file(parent, place, name)
        return
    here = (*place, name)
    if len(here) > DEPTH:
        yield Found(here, why_not=f"a folder with more than {DEPTH} above it")
        return
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        yield Found(here, why_not=error.strerror or "cannot be opened")
        return
    with _closed(folder):
        names = _names(folder)
        for inner in names:
            yield from _entry(folder, here, inner)
        if len(names) > FILES:
            yield Found(here, why_not=f"a folder with more than {FILES} entries: the others")


def _file(parent: int, place: tuple[bytes, ...], name: bytes) -> Iterator[Found]:
    """Yield the file `name`; nothing if there is none."""
    here = (*place, name)
    try:
        # Looked at first: to open a device may be to act on it.
        kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(kind):
            yield Found(here, why_not="a link")
            return
        if not stat.S_ISREG(kind):
            yield Found(here, why_not="not a regular file")
            return
        handle = os.open(name, _FILE, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Found(here, why_not=error.strerror or "cannot be opened")
        return
    with _closed(handle):
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            yield Found(here, why_not="not a regular file")
        elif found.st_nlink > 1:
            yield Found(here, why_not="a hard link: the file has another name too")
        else:
            yield Found(here, handle)


def _names(folder: int) -> list[bytes]:
    """Return the names in an open folder, sorted: FILES of them and one more at most."""
    with os.scandir(folder) as entries:
        return sorted(os.fsencode(entry.name) for entry in islice(entries, FILES + 1))


def _is_folder(parent: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False


@contextlib.contextmanager
def _opened(parent: int, name: bytes) -> Iterator[int | None]:
    """An open folder, or None if there is no folder of this name."""
    try:
        handle = os.open(name, _FOLDER, dir_fd=parent)
    except OSError:
        yield None
        return
    with _closed(handle):
        yield handle


@contextlib.contextmanager
def _closed(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)
