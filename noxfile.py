# /// script
# dependencies = ["nox[uv]>=2025.2"]
# ///
"""Lockstep's sessions. The two that anyone can run: `nox -s cpu_stress` and `nox -s tests`."""

from __future__ import annotations

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests"]

PYTHON = "3.11"
PYPROJECT = nox.project.load_toml("pyproject.toml")
STACK = {"python": PYTHON, "reuse_venv": True, "venv_location": ".nox/cpu-stack"}
"""Sessions on the pinned stack share one environment: it has 8 GB."""


def install_stack(session: nox.Session) -> None:
    """The pinned stack without a GPU, exactly as constraints/cpu.txt has it, and Lockstep itself."""
    session.install("--no-deps", "-r", "constraints/cpu.txt")
    session.install("--no-deps", "-e", ".")


@nox.session(**STACK)
def cpu_stress(session: nox.Session) -> None:
    """Run the incident's job three times without a GPU: as it is, with the fault, with fault and cure."""
    install_stack(session)
    session.run("lockstep", "run", "--device", "cpu", *session.posargs)


@nox.session(**STACK)
def tests(session: nox.Session) -> None:
    """Unit tests, and the tests on the real packages (`-- tests/unit` for the former alone)."""
    install_stack(session)
    session.run("pytest", *(session.posargs or ["tests/unit", "tests/stack"]))


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """ruff and mypy."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "lint"), "-e", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(python=PYTHON)
def lock(session: nox.Session) -> None:
    """Rebuild the constraint files from their short inputs, as of the days after the incident."""
    session.install("uv")
    session.run(
        "uv", "pip", "compile", "constraints/cpu.in", "--override", "constraints/cpu.overrides.txt",
        "--python-version", PYTHON, "--python-platform", "x86_64-manylinux_2_28", "--exclude-newer", "2025-12-08",
        "--generate-hashes", "--no-annotate", "--no-emit-index-url", "--custom-compile-command", "nox -s lock",
        "--quiet", "--output-file", "constraints/cpu.txt", *session.posargs,
    )  # fmt: skip
