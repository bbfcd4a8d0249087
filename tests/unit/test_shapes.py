"""The data set: rebuilt byte for byte, well formed, and refused with file and line when it is not."""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lockstep.fixtures.png import SIGNATURE, two_colour_png
from lockstep.fixtures.shapes import (
    ANSWERS,
    COLOURS,
    ROWS,
    SHAPES,
    DatasetError,
    check_dataset,
    main,
    write_shapes,
)

COMMITTED = Path(__file__).parents[2] / "datasets" / "shapes"


def files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_generator_rebuilds_the_committed_files(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    committed = files(COMMITTED)
    del committed["README.md"]
    assert files(tmp_path) == committed


def test_another_seed_gives_other_pictures(tmp_path: Path) -> None:
    write_shapes(tmp_path, seed=1)
    assert files(tmp_path)["train.jsonl"] != files(COMMITTED)["train.jsonl"]


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("split", ROWS)
def test_committed_rows_are_usable_and_spread(split: str) -> None:
    path = COMMITTED / f"{split}.jsonl"
    assert check_dataset(path) == ROWS[split]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    solutions = Counter(row["solution"] for row in rows)
    assert set(solutions) == set(ANSWERS)
    for kind in (COLOURS, SHAPES):
        assert sum(solutions[answer] for answer in kind) >= len(rows) * 0.4
    for row in rows:
        # The picture's name says what is in it.
        assert row["solution"] in row["images"][0]


def test_data_set_is_small() -> None:
    assert sum(len(content) for content in files(COMMITTED).values()) < 200_000


def chunks(png: bytes) -> dict[bytes, bytes]:
    assert png.startswith(SIGNATURE)
    found, at = {}, len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        found[kind] = body
        at += 12 + length
    return found


def test_png_holds_the_pixels_asked_for() -> None:
    found = chunks(two_colour_png(10, 2, (1, 2, 3), (250, 251, 252), lambda x, y: x == 9 or y == 1))
    assert list(found) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", found[b"IHDR"]) == (10, 2, 1, 3, 0, 0, 0)
    assert list(found[b"PLTE"]) == [250, 251, 252, 1, 2, 3]
    assert zlib.decompress(found[b"IDAT"]) == bytes([0, 0b00000000, 0b01000000, 0, 0b11111111, 0b11000000])


def test_png_larger_than_a_stored_block() -> None:
    found = chunks(two_colour_png(1024, 1024, (0, 0, 0), (9, 9, 9), lambda x, y: x == y))
    assert len(zlib.decompress(found[b"IDAT"])) == 1024 * (1 + 1024 // 8)


GOOD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "<image>What?"}],
    "images": ["a.png"],
    "solution": "red",
}


def write_rows(directory: Path, *lines: str) -> Path:
    (directory / "a.png").write_bytes(two_colour_png(8, 8, (0, 0, 0), (9, 9, 9), lambda x, y: False))
    (directory / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(20))
    (directory / "a.webp").write_bytes(b"RIFF\x10\0\0\0WEBPVP8 ")
    (directory / "not-an-image.png").write_bytes(b"version https://git-lfs")
    path = directory / "rows.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"images": ["a.jpg"]},
        {"images": ["a.webp"]},
        {"messages": [{"role": "user", "content": "no picture"}], "images": []},
        {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "<image>"}]},
        {"messages": [{"role": "user", "content": "<image><image>"}], "images": ["a.png", "a.jpg"]},
    ],
)
def test_good_rows_pass(tmp_path: Path, change: dict[str, Any]) -> None:
    assert check_dataset(write_rows(tmp_path, json.dumps(GOOD), json.dumps(GOOD | change))) == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"messages": None}, "expected 'messages'"),
        ({"messages": []}, "expected 'messages'"),
        ({"messages": ["hello"]}, "expected messages[0] to have a 'role'"),
        ({"messages": [{"role": "robot", "content": ""}]}, "expected messages[0] to have a 'role'"),
        ({"messages": [{"role": "user", "content": 3}]}, "expected messages[0] to have a 'content'"),
        ({"messages": [{"role": "system", "content": ""}]}, "expected a message with the role user"),
        ({"images": "a.png"}, "expected 'images', a list"),
        ({"images": [{"path": "a.png"}]}, "expected 'images', a list"),
        ({"images": []}, "as many <image> marks as images, found 1 and 0"),
        ({"images": ["a.png", "a.png"]}, "as many <image> marks as images, found 1 and 2"),
        ({"images": ["absent.png"]}, "absent.png: No such file"),
        ({"images": ["."]}, "Is a directory"),
        ({"images": ["not-an-image.png"]}, "to be a PNG, JPEG or WebP image"),
        ({"solution": ""}, "expected 'solution'"),
        ({"solution": None}, "expected 'solution'"),
    ],
)
def test_bad_row_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    path = write_rows(tmp_path, json.dumps(GOOD), json.dumps(GOOD | change))
    with pytest.raises(DatasetError) as raised:
        check_dataset(path)
    assert str(raised.value).startswith(f"{path}:2: ")
    assert expected in str(raised.value)


@pytest.mark.parametrize("line", ["", "{", "[1]", '"text"', "\udcff"])
def test_line_that_is_no_json_object(tmp_path: Path, line: str) -> None:
    path = write_rows(tmp_path)
    path.write_bytes(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DatasetError, match=r"rows\.jsonl:1: expected a JSON object"):
        check_dataset(path)


def test_empty_and_absent_files(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="at least one row"):
        check_dataset(write_rows(tmp_path))
    with pytest.raises(DatasetError, match=r"absent\.jsonl: expected a readable"):
        check_dataset(tmp_path / "absent.jsonl")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = write_rows(tmp_path, json.dumps({"messages": GOOD["messages"], "images": ["a.png"], "label": "x"}))
    assert check_dataset(path, columns=["label"]) == 1
    assert check_dataset(path, columns=[]) == 1
    with pytest.raises(DatasetError, match="expected 'solution'"):
        check_dataset(path)
