"""Times `lockstep dumps` against torch's own analyzer on the same dumps, and compares what they find.

    python benchmarks/dumps.py --analyzer /path/to/env/bin/python [--ranks 64 1024] [--out DIR]

The analyzer is `torch.distributed.flight_recorder`, which wheels of torch 2.8 and 2.9 lack; `--analyzer` is
an interpreter of an environment with a release that has it. It runs as a user runs it, except that torch
itself is not imported: the package needs nothing of it, and its import would count against the analyzer.
Times are whole processes, memory is their peak.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit"))

import dump_files

TP = 8
_ANALYZER = """
import pathlib, sys, types
folder = "torch/distributed/flight_recorder"
site = next(p for p in map(pathlib.Path, sys.path) if p.joinpath(folder).is_dir())
for name in ("torch", "torch.distributed"):
    module = types.ModuleType(name)
    module.__path__ = [str(site.joinpath(*name.split(".")))]
    sys.modules[name] = module
from torch.distributed.flight_recorder.fr_trace import main
main(sys.argv[1:])
"""
_FOUND = re.compile(
    r"(Not all ranks joining collective|has errors|Input/output mismatch|cannot decide|missing ranks: .*|"
    r"Culprit rank \d+; Error type: \w+|AssertionError: .*|KeyError: .*|NotImplementedError.*)"
)


def big_set(world: int, records: int, folder: Path) -> None:
    """A job of `world` ranks whose rings hold `records` records each; rank 5 lacks the last collective.

    A few ranks are written record by record; the others are copies in which names, rank lists and times are
    exchanged, which leaves every byte where torch would put it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    templates: dict[tuple[bool, int], bytes] = {}
    for r in range(world):
        kind = (r == dump_files.CULPRIT, len(str(1 + r // TP)))
        if kind not in templates:
            ranks = dump_files.job(world, records - 1, tp=TP, start=8000, only=[r])
            if r != dump_files.CULPRIT:
                ranks[r].issue(dump_files.WORLD, "all_reduce", 8, state="scheduled")
            templates[kind] = (
                ranks[r]
                .pickled()
                .replace(_text(str(1 + r // TP)), b"<tp>")
                .replace(_text(_ranks(r)), b"<ranks>")
            )
        data = bytearray(
            templates[kind].replace(b"<tp>", _text(str(1 + r // TP))).replace(b"<ranks>", _text(_ranks(r)))
        )
        for at in re.finditer(rb"\x8a\x08.{8}", bytes(data), re.DOTALL):
            created = struct.unpack_from("<q", data, at.start() + 2)[0]
            struct.pack_into("<q", data, at.start() + 2, created + random.randrange(1 << 20))
        (folder / f"nccl_trace_rank_{r}").write_bytes(data)


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _ranks(r: int) -> str:
    first = r // TP * TP
    return json.dumps(list(range(first, first + TP)))


def run(command: list[str], environment: dict[str, str], limit_s: float) -> tuple[float, float, int, str]:
    """Wall and CPU seconds, peak resident bytes, output."""
    with tempfile.TemporaryFile() as out:
        started = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | environment
        )
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        _, _, used = os.wait4(process.pid, 0)
        timer.cancel()
        wall = time.monotonic() - started
        out.seek(0)
        text = out.read().decode(errors="replace")
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--analyzer", required=True, help="an interpreter whose torch has torch.distributed.flight_recorder"
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="keep the dumps here, and use those that are there")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds for one run")
    parser.add_argument("--no-findings", action="store_true", help="only time")
    args = parser.parse_args()
    root = args.out or Path(tempfile.mkdtemp(prefix="lockstep-dumps-"))
    ours = [sys.executable, "-c", "from lockstep.cli import main; main()", "dumps"]
    theirs = [args.analyzer, "-c", _ANALYZER]
    for world in args.ranks:
        folder = root / f"ranks-{world}"
        if not folder.exists():
            big_set(world, args.records, folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        best = {}
        for name, command in (("lockstep", ours), ("torch", theirs)):
            runs = [
                run([*command, str(folder)], {}, args.limit)
                for _ in range(2 if name == "lockstep" or world < 200 else 1)
            ]
            best[name] = min(runs, key=lambda one: one[1])
            wall, cpu, peak, text = best[name]
            found = (
                "; ".join(dict.fromkeys(_FOUND.findall(text))) if name == "torch" else text.splitlines()[0]
            )
            print(
                f"{world} ranks, {size / 1e6:.0f} MB, {name}: {wall:.2f} s ({cpu:.2f} s CPU), "
                f"{peak / 2**20:.0f} MiB; {found[:160]}",
                flush=True,
            )
        wall, cpu = (best["torch"][i] / best["lockstep"][i] for i in (0, 1))
        print(f"{world} ranks: {wall:.1f} times as fast, {cpu:.1f} times by CPU time", flush=True)
    if not args.no_findings:
        findings(root / "defects", ours, theirs)


def findings(root: Path, ours: list[str], theirs: list[str]) -> None:
    for name, (defect, _) in dump_files.DEFECTS.items():
        ranks = dump_files.job(8, 200, start=0 if name == "lone_send" else 1000)
        defect(ranks)
        dump_files.write(ranks, root / name)
        _, _, _, text = run([*ours, str(root / name)], {"COLUMNS": "400"}, 60)
        _, _, _, other = run([*theirs, str(root / name)], {}, 60)
        print(f"\n{name}\n  lockstep: {text.splitlines()[0].strip()[:300]}")
        print(f"  torch: {'; '.join(dict.fromkeys(_FOUND.findall(other)))[:300] or 'nothing'}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
