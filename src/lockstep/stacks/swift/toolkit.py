"""The CUDA toolkit as the trainer needs it: to be asked for its release, and for nothing else.

DeepSpeed 0.17.6 runs `CUDA_HOME/bin/nvcc -V` when it is imported where a GPU is to be had, and its import
fails where that cannot be run (`op_builder/fp_quantizer.py`, `installed_cuda_version`). The job compiles
nothing with it, so where there is none a stub answers in its place. Standard library only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

RELEASE = "12.8"
"""Of CUDA, that the pinned torch 2.8.0 was built for."""
ANSWER = f"Cuda compilation tools, release {RELEASE}, V{RELEASE}.93"
USUAL = Path("/usr/local/cuda")


def has_nvcc(env: Mapping[str, str], usual: Path = USUAL) -> bool:
    """Whether nvcc is where torch 2.8.0 looks for it (`torch.utils.cpp_extension._find_cuda_home`)."""
    home = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    if home is None and shutil.which("nvcc", path=env.get("PATH", os.defpath)):
        return True
    return os.access(Path(home or usual) / "bin" / "nvcc", os.X_OK)


def make_stub(home: Path) -> None:
    """Write the stub `home/bin/nvcc`; one that is there is replaced at once. Raises OSError."""
    nvcc = home / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    new = nvcc.with_name(f".nvcc-{os.getpid()}")
    new.write_text(
        "#!/bin/sh\n# Made by lockstep where there is no CUDA toolkit. It compiles nothing.\n"
        f'case "$*" in -V | --version) echo "{ANSWER}" ;;\n'
        '*) echo "lockstep: this stub compiles nothing: install the CUDA toolkit" >&2; exit 1 ;; esac\n'
    )
    new.chmod(0o755)
    new.replace(nvcc)
