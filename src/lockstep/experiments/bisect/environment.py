"""One environment for each release: the pinned stack with that one release in it, and as little else moved as
the release allows.

uv takes the releases in an existing output file as preferences. So the lock starts as a copy of the pinned
one; where the short list with its exact pins does not resolve, the pins become preferences too. An override
that names a package which the release itself pins (say `torch==2.9.1+cpu`) follows it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import lockstep
from lockstep.experiments.bisect import checkout
from lockstep.run.run_lock import is_ours, mark, remove

PYTHON, PLATFORM = "3.11", "x86_64-manylinux_2_28"
KEPT = 3
"""How many environments there are at most: one has 8 to 10 GB, most of it shared with uv's cache."""
BUILD_S = 1800.0
CONSTRAINTS = Path("constraints")
_STACKS = {"cpu": "cpu", "cuda": "gpu"}
"""Device -> what its files in constraints/ are called."""
_OTHER_NAME = "does not match given name"
"""uv's words where a folder has another package than it was named for."""
_TORCH = frozenset({"torch", "torchvision", "triton"})
"""Packages of which each release fits one release of the others."""


class BuildError(RuntimeError):
    """The release cannot be resolved or installed; the message is the resolver's last words."""


class ToolError(RuntimeError):
    """Nothing can be built here, whatever the release."""


@dataclass(frozen=True)
class Environment:
    python: Path
    lock: dict[str, str]
    """Package -> release, all of them."""
    moved: dict[str, tuple[str | None, str | None]]
    """Package -> pinned release and the one here, where they differ."""


def build(
    device: str,
    want: Mapping[str, str],
    folder: Path,
    source: tuple[str, Path] | None = None,
    names_torch: Container[str] = (),
) -> Environment:
    """The environment for the releases `want` (package -> release), built if it is not there yet.

    `source` is a package and the checkout to build it from, a copy of it, anew each time. `folder` holds all
    environments; the oldest of Lockstep's go when there are too many. Raises BuildError, ToolError.
    """
    uv = _uv()
    name = "-".join(
        [device, *(f"{k}-{v}" for k, v in sorted(want.items())), *(["source-" + source[0]] if source else [])]
    )
    place = folder / name
    lock, done = place / "lock.txt", place / "complete"
    if source or not done.exists():
        if place.exists() and not (is_ours(place) or done.exists()):
            raise ToolError(f"{place}: lockstep did not make this folder; give another --out")
        _forget(folder, KEPT - 1, place)
        mark(place)
        done.unlink(missing_ok=True)
        _run([uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(place / "env")])
        python = place / "env" / "bin" / "python"
        if source:
            source = (source[0], checkout.copy(source[1], place / "source"))
        asked = _asked(uv, want, names_torch, place)
        _resolve(uv, device, want, source, asked, lock, place)
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python)]
        _run([*install, "-r", str(lock)], why=True)
        if source:
            _run([*install, "--reinstall-package", source[0], str(source[1])], why=True)
    python = place / "env" / "bin" / "python"
    # Not editable: the tree may change while a bisection runs, and a release must be tried with what is now.
    _run(
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--python",
            str(python),
            "--reinstall",
            str(_own_tree()),
        ]
    )
    done.touch()
    now, pinned = read_lock(lock), read_lock(pins(device))
    if source:
        now[canonicalize_name(source[0])] = _installed(python, source[0])
    moved = {k: (pinned.get(k), now.get(k)) for k in sorted({*now, *pinned}) if pinned.get(k) != now.get(k)}
    return Environment(python, now, moved)


def pins(device: str) -> Path:
    """All packages of the pinned stack for a device, resolved; in the checkout that is the working folder."""
    return CONSTRAINTS / f"{_STACKS[device]}.txt"


def read_lock(path: Path) -> dict[str, str]:
    """Package -> release of a resolved file, but for packages from a folder: of those it tells none."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", line):
            found[canonicalize_name(match[1])] = match[2]
    return found


def short_list(text: str, want: Mapping[str, str], source: tuple[str, Path] | None, *, exact: bool) -> str:
    """The short list of the stack with the releases `want` in it; the other pins as bare names unless
    `exact`."""
    lines = []
    for line in text.splitlines():
        name, pinned, _ = line.partition("==")
        key = canonicalize_name(name.strip())
        if source and key == canonicalize_name(source[0]):
            line = f"{name} @ {source[1].resolve().as_uri()}"
        elif key in want:
            line = f"{name}=={want[key]}"
        elif pinned and not exact:
            line = name
        lines.append(line)
    return "\n".join(lines) + "\n"


def overrides(text: str, kin: Mapping[str, str]) -> str:
    """The overrides of the pinned stack, with the releases in `kin` for those of torch and its kin."""
    lines = []
    for line in text.splitlines():
        name, exact, _ = line.partition("==")
        if exact and (moved := kin.get(canonicalize_name(name))):
            line = f"{name}=={moved}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _asked(uv: str, want: Mapping[str, str], names_torch: Container[str], place: Path) -> dict[str, str]:
    """Which torch a wanted release is built for, of a package that pins its torch exactly."""
    wheel = {name: release for name, release in want.items() if name in names_torch}
    if not wheel:
        return {}
    ((name, release),) = wheel.items()
    target = place / "metadata"
    _run([uv, "pip", "install", "--quiet", "--no-deps", "--python", str(place / "env" / "bin" / "python"),
          "--target", str(target), f"{name}=={release}"], why=True)  # fmt: skip
    found: dict[str, str] = {}
    for metadata in target.glob("*.dist-info/METADATA"):
        for line in metadata.read_text(errors="replace").splitlines():
            if not line.startswith("Requires-Dist: "):
                continue
            try:
                requirement = Requirement(line.partition(": ")[2])
            except InvalidRequirement:
                continue
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if requirement.name == "torch" and applies:
                exact = [one.version for one in requirement.specifier if one.operator == "=="]
                if exact:
                    found["torch"] = exact[0].partition("+")[0]
    shutil.rmtree(target)
    return found


def _resolve(
    uv: str,
    device: str,
    want: Mapping[str, str],
    source: tuple[str, Path] | None,
    asked: Mapping[str, str],
    lock: Path,
    place: Path,
) -> None:
    short = pins(device).with_suffix(".in").read_text()
    pinned = read_lock(pins(device))
    torch = want.get("torch") or asked.get("torch")
    kin = _kin(uv, torch, place) if torch and torch != pinned.get("torch") else {}
    extra: list[str] = []
    if (given := pins(device).with_suffix(".overrides.txt")).exists():
        own = place / "overrides.txt"
        own.write_text(overrides(given.read_text(), kin))
        extra = ["--override", str(own)]
    for exact in (True, False):
        shutil.copy(pins(device), lock)
        listed = place / "stack.in"
        more = [f"{name}=={release}" for name, release in want.items() if f"\n{name}==" not in f"\n{short}"]
        listed.write_text("\n".join([short_list(short, {**kin, **want}, source, exact=exact), *more]) + "\n")
        try:
            _compile(uv, listed, lock, extra)
            break
        except BuildError:
            if not exact:
                raise
    found = read_lock(lock)
    for name, release in want.items():
        there = found.get(canonicalize_name(name))
        # Without local parts: an override may name the build for a CPU, 2.8.0+cpu.
        if there is None or Version(there).public != Version(release).public:
            raise BuildError(f"{name} {release} is asked for, and it resolves to {there or 'nothing'}")


def _kin(uv: str, torch: str, place: Path) -> dict[str, str]:
    """torch and the releases of its kin that fit: an override of torch hides what they ask for."""
    short, lock = place / "torch.in", place / "torch.txt"
    short.write_text(f"torch=={torch}\ntorchvision\n")
    lock.unlink(missing_ok=True)
    _compile(uv, short, lock, [])
    return {name: release for name, release in read_lock(lock).items() if name in _TORCH}


def _compile(uv: str, short: Path, lock: Path, extra: Sequence[str]) -> None:
    target = ["--python-version", PYTHON, "--python-platform", PLATFORM, "--no-annotate", "--no-header"]
    command = [uv, "pip", "compile", "--quiet", str(short), *extra, *target, "--output-file", str(lock)]
    _run(command, why=True)


def _installed(python: Path, package: str) -> str:
    """The release that a checkout calls itself."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"what the checkout installs is not called {package}")
    return done.stdout.strip()


def _forget(folder: Path, keep: int, but: Path) -> None:
    built = [p for p in folder.iterdir() if p != but and is_ours(p)] if folder.is_dir() else []
    built.sort(key=lambda place: place.stat().st_mtime)
    for old in built[: max(0, len(built) - keep)]:
        remove(old)


def _own_tree() -> Path:
    tree = Path(lockstep.__file__).parents[2]
    if not (tree / "pyproject.toml").exists():
        tree = Path.cwd()
    if not (tree / "pyproject.toml").exists() or not CONSTRAINTS.is_dir():
        raise ToolError(
            "run it in a checkout of Lockstep: it needs constraints/ and installs itself from there"
        )
    return tree


def _uv() -> str:
    if uv := shutil.which("uv"):
        return uv
    raise ToolError("uv is not on PATH; it comes with `pip install 'nox[uv]'`")


def _run(command: list[str], *, why: bool = False) -> None:
    """`why`: a failure is the release's."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{' '.join(command[1:3])} took more than {BUILD_S:.0f} s") from error
    if done.returncode:
        words = " ".join(done.stderr.split()).removeprefix("× ")[:600]
        if _OTHER_NAME in words:  # the user's mistake, not the commit's
            raise ToolError(f"--source: the checkout is of another package than --package: {words}")
        raise (BuildError if why else ToolError)(words or f"{command[1]} ended with {done.returncode}")
