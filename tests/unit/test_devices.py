"""Which GPUs are found, and who gets which."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import fake_smi
import pytest

from lockstep.devices import DeviceError, alone, find_gpus, scale, split, use

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [0, 1, 4, 8])
def test_nvidia_smi_is_asked(tmp_path: Path, count: int) -> None:
    assert find_gpus(fake_smi.install(tmp_path / "bin", count), tmp_path / "proc") == tuple(range(count))


def test_proc_where_nvidia_smi_is_missing_or_fails(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / "proc" / f"0000:{number}8:00.0").mkdir(parents=True)
    assert find_gpus({"PATH": str(tmp_path)}, tmp_path / "proc") == (0, 1, 2, 3)
    assert find_gpus(fake_smi.install(tmp_path / "bin", 8, status=9), tmp_path / "proc") == (0, 1, 2, 3)
    assert find_gpus({"PATH": str(tmp_path)}, tmp_path / "nothing") == ()


def test_visible_devices_limit_it(tmp_path: Path) -> None:
    env = fake_smi.install(tmp_path, 8)
    assert find_gpus(env | {"CUDA_VISIBLE_DEVICES": "4,5, 6,7,9"}) == (4, 5, 6, 7)
    assert find_gpus(env | {"CUDA_VISIBLE_DEVICES": ""}) == ()
    with pytest.raises(DeviceError, match="GPU-abc: expected numbers"):
        find_gpus(env | {"CUDA_VISIBLE_DEVICES": "GPU-abc"})


@pytest.mark.parametrize(
    ("gpus", "rollout", "sides"),
    [
        (None, None, ((0, 1, 2, 3, 4, 5), (6, 7))),
        ("4", None, ((0, 1), (2, 3))),
        ("3", None, ((0,), (1, 2))),
        ("6", "4", ((0, 1), (2, 3, 4, 5))),
        ("7,6,5,4", None, ((7, 6), (5, 4))),
        ("0,1,2,3,4,5", "0,1", ((2, 3, 4, 5), (0, 1))),
    ],
)
def test_split(gpus: str | None, rollout: str | None, sides: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    assert split(range(8), gpus, rollout) == sides


@pytest.mark.parametrize(
    ("found", "gpus", "rollout", "told"),
    [
        ((), None, None, "GPUs found: none; needed: 3"),
        ((0, 1), None, None, "GPUs found: 2 (0, 1); needed: 3"),
        ((0, 1, 2, 3), "6", None, "needed: 6, as --gpus says"),
        ((0, 1, 2, 3), "0,1,6,7", None, "needed: number 6, 7, as --gpus says"),
        ((0, 1, 2, 3), None, "4", "needed: 1 for the trainer, and --rollout-gpus 4 leaves it 0"),
        ((0, 1, 2, 3), None, "1", "needed: 2 for the rollout"),
        ((0, 1, 2, 3), "all", None, "--gpus all: expected how many"),
        ((0, 1, 2, 3), "0,1,1,2", None, "names a GPU twice"),
    ],
)
def test_too_few(found: tuple[int, ...], gpus: str | None, rollout: str | None, told: str) -> None:
    with pytest.raises(DeviceError) as caught:
        split(found, gpus, rollout)
    assert told in str(caught.value)
    if "needed" in told:
        assert str(caught.value).endswith("try: nox -s cpu_stress")


@pytest.mark.parametrize(
    ("count", "job", "rollout", "unproven"),
    [
        (8, True, (6, 7), "nothing that the job has"),
        (4, True, (2, 3), "nothing that the job has"),
        (3, True, (1, 2), "ZeRO-3 of one rank"),
        (2, False, (0, 1), "the trainer"),
        (1, False, (0, 0), "anything of NCCL's"),
    ],
)
def test_the_largest_that_fits_says_what_it_proves_and_what_not(
    count: int, job: bool, rollout: tuple[int, ...], unproven: str
) -> None:
    fits = scale(range(count))
    assert fits.job is job
    assert fits.proves
    assert unproven in fits.not_proven
    assert alone(range(count)) == rollout


def test_gpus_that_are_chosen_count_and_no_others() -> None:
    assert use(range(8), "2") == (0, 1)
    assert not scale(use(range(8), "2")).job
    assert alone(range(8), "5,3") == (5, 3)
    with pytest.raises(DeviceError, match="needed: 4 for the whole job, 1 for a reduced soak"):
        scale(())


def test_only_the_standard_library_is_needed() -> None:
    code = "import sys; sys.path.insert(0, 'src'); from lockstep import devices; devices.find_gpus()"
    subprocess.run([sys.executable, "-S", "-I", "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("session", "needed"), [("gpu_stress", "4 for the whole job"), ("gpu_check", "4"), ("gpu_all", "4")]
)
def test_nox_ends_before_anything_is_installed(tmp_path: Path, session: str, needed: str) -> None:
    nox = shutil.which("nox")
    if nox is None:
        pytest.skip("nox is not on PATH")
    env = fake_smi.install(tmp_path, 0) | {"HOME": str(tmp_path)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [nox, "-s", session], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 5, "of CPU: other work on the machine does not count"
    assert done.returncode == 1
    assert f"GPUs found: none; needed: {needed}" in done.stderr
    assert "nox -s cpu_stress" in done.stderr
    assert "installing" not in done.stderr
