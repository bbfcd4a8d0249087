"""Where the job's packages put what nobody asked for: temporary files, caches, settings. Gone when the job
is."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockstep.stacks.base import Folders

LONGEST = 107 - max(len("/00000000-0000-0000-0000-000000000000"), len("/pymp-12345678/listener-12345678"))
"""Bytes of a folder's path in which the packages' unix sockets still have room. `sockaddr_un.sun_path` has
108 with its end; a socket may be named by a UUID (37); Python's `multiprocessing` puts its sockets one folder
deeper (32)."""


@contextlib.contextmanager
def scratch(run_dir: Path) -> Iterator[Path]:
    """A new folder `run_dir/tmp`, or one in the system's temporary folder where that path is too long for
    sockets.

    It stays when this process is killed with SIGKILL.
    """
    folder = run_dir / "tmp"
    if len(os.fsencode(folder)) <= LONGEST:
        folder.mkdir()
    else:
        folder = Path(tempfile.mkdtemp(prefix="lockstep-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


COMPILED = ("torch_inductor", "triton")
"""Folders of `cache` with compiled code, besides those of the stack."""


def has_compiled(cache: Path | None, stack: Folders) -> bool:
    """Return whether an earlier job has left compiled code there."""
    return cache is not None and any((cache / name).exists() for name in (*COMPILED, *stack.cached.values()))


def drop_compiled(cache: Path, stack: Folders) -> None:
    """Remove what was compiled: a process that is killed while it writes leaves a part, which the next one
    takes for the whole."""
    for name in (*COMPILED, *stack.cached.values()):
        shutil.rmtree(cache / name, ignore_errors=True)


def environment(folder: Path, cache: Path | None, stack: Folders) -> dict[str, str]:
    """Variables that lead the packages into `folder`; and into `cache` with what they compile or look up once
    and should find again in the next job. Without a `cache` they keep that where the caller has it."""
    env = {
        "TMPDIR": folder,
        "XDG_CONFIG_HOME": folder / "config",
        **{name: folder / path for name, path in stack.private.items()},
    }
    if cache is not None:
        env |= {
            "XDG_CACHE_HOME": cache,
            "TORCH_EXTENSIONS_DIR": cache / "torch_extensions",
            "TORCHINDUCTOR_CACHE_DIR": cache / "torch_inductor",
            "TRITON_CACHE_DIR": cache / "triton",
            **{name: cache / path for name, path in stack.cached.items()},
        }
    return {name: str(value) for name, value in env.items()}
