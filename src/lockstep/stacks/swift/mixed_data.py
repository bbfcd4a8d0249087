"""The job's data with rows that have no image."""

from __future__ import annotations

import json
from pathlib import Path


def without_images(source: Path, target: Path, *, every: int = 2) -> Path:
    """Writes the rows of `source` to `target`, each `every`-th without its image; the other images' paths
    become absolute.
    """
    lines = []
    for number, line in enumerate(source.read_text().splitlines(), 1):
        row = json.loads(line)
        if number % every:
            row["images"] = [str((source.parent / image).resolve()) for image in row["images"]]
        else:
            row["images"] = []
            for message in row["messages"]:
                message["content"] = message["content"].replace("<image>", "")
        lines.append(json.dumps(row) + "\n")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(lines))
    return target
