"""How every command begins and ends: with safe streams, and with an exit code that is a verdict only where
there is one. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from lockstep.exits import FORESEEN, INTERRUPTED, UNFORESEEN
from lockstep.report.safe_text import one_line
from lockstep.report.streams import OutputError, make_safe

_USERS = {
    getattr(errno, name)
    for name in (
        "EACCES", "EPERM", "ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ELOOP", "ENAMETOOLONG", "ENOSPC",
        "EDQUOT", "EROFS", "EIO", "EMFILE", "ENFILE", "EFBIG", "ETXTBSY", "ESTALE",
    )
}  # fmt: skip
"""Errors of files that the user, or the machine, can help."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


def guarded(
    command: Callable[[], int | None], *, foreseen: int = FORESEEN, unforeseen: int = UNFORESEEN
) -> NoReturn:
    """Runs a command and ends the process with what it returns, or with its SystemExit's code.

    `foreseen` and `unforeseen` are the codes for errors of the two kinds. Whatever cannot be said because
    standard output is full or closed is an error of the first kind; a reader that has gone is none.
    """
    try:
        make_safe()
        code = _run(command)
        sys.stdout.flush()
    except OutputError as error:
        code = _say(str(error), foreseen)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:
        if error.errno in _USERS and error.filename is not None:
            code = _say(f"{_name(error.filename)}: {error.strerror}", foreseen)
        elif error.errno in _FULL:  # a write that fails does not say of which file
            code = _say(str(error.strerror), foreseen)
        else:
            code = _report(error, unforeseen)
    except Exception as error:
        code = _report(error, unforeseen)
    sys.exit(code)


def _run(command: Callable[[], int | None]) -> int:
    try:
        return command() or 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # click's way; ours are overlooked by the streams
            raise stop.__context__ from None
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        return _say(str(stop.code), FORESEEN)


def _say(message: str, code: int) -> int:
    print(f"lockstep: {one_line(message)}", file=sys.stderr)
    return code


def _report(error: Exception, code: int) -> int:
    with contextlib.suppress(MemoryError, RecursionError):
        traceback.print_exception(error, limit=-30)
    words = one_line(f"{type(error).__name__}: {error}")[:300]
    print(
        f"lockstep: an error that nobody foresaw ({words}); this is no verdict. "
        "Please report it to Lockstep's issue tracker, with the lines above, the command, and what "
        "`lockstep --version` says",
        file=sys.stderr,
    )
    return code


def _name(path: object) -> str:
    return path.decode(errors="surrogateescape") if isinstance(path, bytes) else str(path)
