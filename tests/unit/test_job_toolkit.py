"""Where torch looks for nvcc, and the stub that answers where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lockstep.stacks.swift import toolkit


def test_nvcc_is_looked_for_as_torch_does(tmp_path: Path) -> None:
    real, bare, path = tmp_path / "real", tmp_path / "bare", tmp_path / "path"
    toolkit.make_stub(real)
    bare.mkdir()
    path.mkdir()
    (path / "nvcc").symlink_to(real / "bin" / "nvcc")
    nowhere = {"PATH": str(bare)}
    assert not toolkit.has_nvcc(nowhere, usual=bare)
    # A container with CUDA's libraries alone has the folder, and no nvcc in it.
    assert toolkit.has_nvcc(nowhere, usual=real)
    assert toolkit.has_nvcc(nowhere | {"CUDA_HOME": str(real)}, usual=bare)
    assert toolkit.has_nvcc(nowhere | {"CUDA_PATH": str(real)}, usual=bare)
    assert toolkit.has_nvcc({"PATH": str(path)}, usual=bare)
    assert not toolkit.has_nvcc({"PATH": str(path), "CUDA_HOME": str(bare)}, usual=real)


def test_the_stub_tells_its_release_and_compiles_nothing(tmp_path: Path) -> None:
    toolkit.make_stub(tmp_path)
    toolkit.make_stub(tmp_path)
    nvcc = str(tmp_path / "bin" / "nvcc")
    told = subprocess.run([nvcc, "-V"], capture_output=True, text=True, check=True).stdout
    assert told == "Cuda compilation tools, release 12.8, V12.8.93\n"
    failed = subprocess.run([nvcc, "-c", "x.cu"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "install the CUDA toolkit" in failed.stderr
    assert [file.name for file in (tmp_path / "bin").iterdir()] == ["nvcc"]
