"""The copy of a checkout that is built instead of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lockstep.experiments.bisect.checkout import copy, describe


def git(tree: Path, *words: str) -> str:
    command = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e@x", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write(tree: Path, **files: str) -> None:
    for name, text in files.items():
        path = tree / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(tree: Path) -> dict[str, str]:
    paths = (path for path in tree.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(path.relative_to(tree)): path.read_text() for path in paths if path.name != ".git"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "a tree"
    write(tree, setup="1", pk__x="x", pk__gone="g")
    (tree / ".gitignore").write_text("ignored\n")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "m")
    git(tree, "tag", "v1")
    return tree


def test_it_has_what_the_tree_has_and_nothing_that_was_made_there(tree: Path, tmp_path: Path) -> None:
    write(tree, pk__x="changed", pk__new="n", ignored="i", build__lib__pk__old="o", pk_egg_info="e")
    (tree / "pk.egg-info").mkdir()
    (tree / "pk.egg-info" / "top").write_text("t")
    (tree / "pk" / "gone").unlink()
    (tree / "pk" / "link").symlink_to("x")
    made = copy(tree, tmp_path / "copy")
    expected = {"setup": "1", "pk/x": "changed", "pk/new": "n", "pk/link": "changed", "pk_egg_info": "e",
                ".gitignore": "ignored\n"}  # fmt: skip
    assert found(made) == expected
    assert (made / "pk" / "link").is_symlink()


def test_of_the_last_one_nothing_is_left(tree: Path, tmp_path: Path) -> None:
    copy(tree, tmp_path / "copy")
    (tree / "pk" / "x").unlink()
    write(tree, pk__x__inner="i")
    assert "pk/x/inner" in found(copy(tree, tmp_path / "copy"))


def test_it_is_new_to_who_looks_at_times(tree: Path, tmp_path: Path) -> None:
    os.utime(tree / "setup", (1000, 1000))
    assert (copy(tree, tmp_path / "copy") / "setup").stat().st_mtime > 1e9


def test_a_build_that_asks_git_gets_the_trees_answer(tree: Path, tmp_path: Path) -> None:
    made = copy(tree, tmp_path / "copy")
    assert git(made, "describe", "--tags") == "v1\n"
    assert git(made, "rev-parse", "--show-toplevel").strip() == str(made)


@pytest.mark.parametrize("relative", [False, True])
def test_without_git_the_folder_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    tree = tmp_path / "tree"
    write(tree, setup="1", pk__x="x", build__lib="o")
    monkeypatch.chdir(tmp_path)
    made = copy(Path("tree") if relative else tree, Path("copy"))
    assert made.is_absolute()
    assert found(made) == {"setup": "1", "pk/x": "x"}
    assert describe(Path("tree")) == "tree"


def test_a_folder_inside_of_another_checkout_is_not_that_one(tree: Path, tmp_path: Path) -> None:
    inner = tree / "inner"
    write(inner, setup="2")
    assert describe(inner) == "inner"
    assert found(copy(inner, tmp_path / "copy")) == {"setup": "2"}


def test_without_git_on_the_path(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(tree) == "v1"
    write(tree, pk__x="changed")
    assert describe(tree) == "v1-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(tree) == "a tree"
    assert found(copy(tree, tmp_path / "copy"))["pk/x"] == "changed"
