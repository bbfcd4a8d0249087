"""Where the job's packages put what nobody asked for: temporary files, caches, settings. Gone when the job
is."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

LONGEST = 107 - max(len("/00000000-0000-0000-0000-000000000000"), len("/pymp-12345678/listener-12345678"))
"""Bytes of a folder's path in which the packages' unix sockets still have room (`sockaddr_un.sun_path` has
108 with its end): vLLM's are named by a UUID (37), Python's `multiprocessing` puts them one folder deeper
(32)."""


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


COMPILED = ("vllm", "torch_inductor", "triton")
"""Folders of `cache` with compiled code."""


def has_compiled(cache: Path | None) -> bool:
    """Whether an earlier job has left compiled code there."""
    return cache is not None and any((cache / name).exists() for name in COMPILED)


def drop_compiled(cache: Path) -> None:
    """Remove what was compiled: a process that is killed while it writes leaves a part, which the next one
    takes for the whole (vLLM 0.11.0, `vllm/compilation/backends.py`, `CompilerManager.load`)."""
    for name in COMPILED:
        shutil.rmtree(cache / name, ignore_errors=True)


def environment(folder: Path, cache: Path | None) -> dict[str, str]:
    """Variables that lead the packages into `folder`; and into `cache` with what they compile or look up once
    and should find again in the next job. Without a `cache` they keep that where the caller has it."""
    env = {
        "TMPDIR": folder,
        "VLLM_RPC_BASE_PATH": folder,
        "HF_HOME": folder / "huggingface",
        "HF_DATASETS_CACHE": folder / "huggingface" / "datasets",
        "MODELSCOPE_CACHE": folder / "modelscope",
        "MODELSCOPE_CREDENTIALS_PATH": folder / "modelscope" / "credentials",
        "XDG_CONFIG_HOME": folder / "config",
    }
    if cache is not None:
        env |= {
            "XDG_CACHE_HOME": cache,
            "VLLM_CACHE_ROOT": cache / "vllm",
            "TORCH_EXTENSIONS_DIR": cache / "torch_extensions",
            "TORCHINDUCTOR_CACHE_DIR": cache / "torch_inductor",
            "TRITON_CACHE_DIR": cache / "triton",
        }
    return {name: str(value) for name, value in env.items()}
