"""A checkpoint directory is checked, and made once, without the stack being installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.fixtures import checkpoint
from lockstep.fixtures.checkpoint import CheckpointError, check_checkpoint, ensure_checkpoint


def fake_checkpoint(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in checkpoint.FILES:
        (directory / name).write_text("{}")
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"data_offsets": [0, 6]}}).encode()
    (directory / checkpoint.WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(6))
    return directory


def test_complete_checkpoint_passes(tmp_path: Path) -> None:
    check_checkpoint(fake_checkpoint(tmp_path))


@pytest.mark.parametrize("name", checkpoint.FILES)
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (fake_checkpoint(tmp_path) / name).unlink()
    with pytest.raises(CheckpointError) as raised:
        check_checkpoint(tmp_path)
    assert str(raised.value) == f"{tmp_path}: not a complete checkpoint, {name} is missing"


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="absent: expected a checkpoint's directory"):
        check_checkpoint(tmp_path / "absent")


def test_torn_json(tmp_path: Path) -> None:
    (fake_checkpoint(tmp_path) / "config.json").write_text('{"model_type": ')
    with pytest.raises(CheckpointError, match=r"config\.json: expected JSON"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 20, -1])
def test_torn_weights(tmp_path: Path, cut: int) -> None:
    weights = fake_checkpoint(tmp_path) / checkpoint.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: expected"):
        check_checkpoint(tmp_path)


def test_weights_of_another_format(tmp_path: Path) -> None:
    (fake_checkpoint(tmp_path) / checkpoint.WEIGHTS).write_bytes(b"version https://git-lfs\n")
    with pytest.raises(CheckpointError, match="expected a safetensors header"):
        check_checkpoint(tmp_path)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the making by a fake; the directories it was asked for."""
    calls: list[Path] = []

    def make(directory: Path, *_: object) -> Path:
        calls.append(directory)
        return fake_checkpoint(directory)

    monkeypatch.setattr(checkpoint, "make_checkpoint", make)
    monkeypatch.setattr(checkpoint, "version", lambda _: "4.57.1")
    return calls


def test_made_once(tmp_path: Path, made: list[Path]) -> None:
    first = ensure_checkpoint(tmp_path / "cache")
    assert ensure_checkpoint(tmp_path / "cache") == first
    assert len(made) == 1
    assert list(first.parent.iterdir()) == [first]


def test_another_release_of_transformers_gets_its_own(
    tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_checkpoint(tmp_path)
    monkeypatch.setattr(checkpoint, "version", lambda _: "4.57.2")
    assert ensure_checkpoint(tmp_path) != first
    assert len(made) == 2


def test_incomplete_checkpoint_in_the_cache_is_an_error(tmp_path: Path, made: list[Path]) -> None:
    place = ensure_checkpoint(tmp_path)
    (place / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        ensure_checkpoint(tmp_path)


def test_another_process_was_first(tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / f"qwen3-vl-tiny-{checkpoint.recipe_key()}"

    def make(directory: Path, *_: object) -> Path:
        fake_checkpoint(place)
        return fake_checkpoint(directory)

    monkeypatch.setattr(checkpoint, "make_checkpoint", make)
    assert ensure_checkpoint(tmp_path) == place
    assert list(tmp_path.iterdir()) == [place]


def test_failure_leaves_nothing_behind(
    tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(directory: Path, *_: object) -> Path:
        (directory / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "make_checkpoint", make)
    with pytest.raises(OSError, match="disk full"):
        ensure_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_stack_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise checkpoint.PackageNotFoundError(name)

    monkeypatch.setattr(checkpoint, "version", absent)
    with pytest.raises(CheckpointError, match="needs transformers"):
        ensure_checkpoint(tmp_path)
