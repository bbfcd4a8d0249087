"""What is fuzzed: the readers of files that strangers send. One class a reader; imports happen when it is
chosen.

A target takes the bytes of one input and raises nothing unless it has found a defect; an input that its
reader refuses with its own error is fine. It returns whether the reader took the input, so that a run can say
how deep it went.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
sys.path.insert(0, str(ROOT / "tests" / "unit"))


class Target(Protocol):
    seeds: list[bytes]
    tokens: list[bytes]

    def __call__(self, data: bytes) -> bool: ...


class Dumps:
    """`lockstep dumps`: a mutated dump of rank 0 beside a sound one of rank 1, read and judged; now and then
    by both lanes.
    """

    def __init__(self) -> None:
        import dump_files

        from lockstep.dumps import DumpError, DumpSet, judge
        from lockstep.dumps.model import Dump, Operations
        from lockstep.dumps.read import parse
        from lockstep.report import to_json
        from lockstep.verdict import Kind

        self._refused, self._kind = DumpError, Kind
        self._parse, self._judge, self._json = parse, judge, to_json
        self._dump, self._operations, self._set = Dump, Operations, DumpSet
        ranks = dump_files.job(2, 12, tp=2)
        ranks[0].transfer(dump_files.WORLD, "send 0->1", state="scheduled")
        ranks[0].issue(dump_files.WORLD, "all_to_all", sizes=([[3]], [[4]]))
        for rank in ranks.values():
            rank.issue(dump_files.WORLD, "all_reduce", 8, state="started")
        self._peer = ranks[1].pickled()
        self.seeds = [ranks[0].pickled(), ranks[0].json(), ranks[0].stored_again(2), ranks[0].stored_again(5)]
        self.seeds += [path.read_bytes() for path in sorted(DATA.glob("dumps/*/*0*"))]
        for defect, _ in dump_files.DEFECTS.values():
            culprit = dump_files.job(8, 8, only=[dump_files.CULPRIT])
            defect(culprit)
            self.seeds += [rank.pickled() for rank in culprit.values()]
        self.tokens = [
            b"}(", b"](", b"u", b"e", b"N", b"\x88", b"\x89", b"\x86", b"q\x00", b"h\x00",
            b"r\xff\xff\xff\xff", b"j\x00\x00\x00\x01", b"K\x00", b"J\xff\xff\xff\xff",
            b"\x8a\x08" + b"\xff" * 8, b"X\x01\x00\x00\x00a", b"X\xff\xff\xff\x7f", b"cos\nsystem\n", b"R",
            b"\x80\x05", b"\x94", b"\x95" + b"\xff" * 8, b"2", b"\x85", b"[", b"]", b"{", b"null", b"1e999",
            b"[[[[", b'"entries":[', b"input_sizes", b"process_group", b"nccl:", b"gloo:", b"send 1->0",
            b"recv 0<-1", b"all_to_all", b"coalesced", b"completed",
        ]  # fmt: skip
        self._count = 0

    def __call__(self, data: bytes) -> bool:
        self._count += 1
        operations = self._operations()
        try:
            dump = self._parse(data, self._dump("r0", "r", 0, ""), operations)
        except self._refused as error:
            if not str(error).startswith("r0: "):
                raise AssertionError("an error that does not name its file") from error
            return False
        peer = self._parse(self._peer, self._dump("r1", "r", 1, ""), operations)
        whole, damaged = ([peer], [dump]) if dump.damage else ([dump, peer], [])
        verdict = self._judge(self._set(whole, operations, damaged=damaged))
        assert not (damaged and verdict.kind in (self._kind.IN_STEP, self._kind.STALLED)), "a clean answer"
        json.dumps(self._json(verdict))
        if self._count % 16 == 0:
            self._compare(data)
        return True

    def _compare(self, data: bytes) -> None:
        """The lanes must agree; the machine alone follows every reference, and may refuse what the lane has
        passed over.
        """
        read = []
        for fast in (True, False):
            operations = self._operations()
            try:
                dump = self._parse(data, self._dump("r0", "r", 0, ""), operations, fast=fast)
            except self._refused:
                return
            if dump.damage:
                return
            read.append(
                [
                    (t.key, t.first, [operations.by_number[c] for c in t.calls], len(t.open))
                    for t in dump.traces.values()
                ]
            )
        assert read[0] == read[1], "the fast lane and the machine read different records"


class Logs:
    """`lockstep diagnose`."""

    def __init__(self) -> None:
        from lockstep.diagnose import conclude
        from lockstep.diagnose.line_patterns import TRIGGERS
        from lockstep.diagnose.render import render, to_json
        from lockstep.diagnose.scan import scan

        self._scan, self._conclude, self._render, self._json = scan, conclude, render, to_json
        self.seeds = [path.read_bytes()[:20_000] for path in sorted(DATA.glob("logs/*.log"))]
        self.tokens = [
            *TRIGGERS,
            b"\r",
            b"\n",
            b"\r\n",
            b"> ",
            b"\x1b[36m",
            b"[rank0]:",
            b"[Rank 1] ",
            b"NumelIn=2, NumelOut=2",
            b"%|",
            b"9" * 30,
        ]

    def __call__(self, data: bytes) -> bool:
        result = self._scan(io.BytesIO(data), "x")
        found = self._conclude(result.events, [])
        self._render(found)
        json.dumps(self._json(found))
        return bool(result.events)


class Scripts:
    """`lockstep audit`, with `--fix`."""

    def __init__(self) -> None:
        from lockstep.audit import AuditError, findings, from_texts
        from lockstep.audit.fix import fix
        from lockstep.audit.output import to_json
        from lockstep.audit.shell.text import decode

        self._refused = AuditError
        self._findings, self._from_texts, self._fix, self._json, self._decode = (
            findings,
            from_texts,
            fix,
            to_json,
            decode,
        )
        self.seeds = [
            path.read_bytes()
            for path in sorted(DATA.glob("scripts/*"))
            if path.suffix in (".sh", ".txt", ".sbatch")
        ]
        self.tokens = [text.encode() for text in (
            "\n", "\\\n", "'", '"', "`", "$(", ")", "${", "}", "$((", "))", "<<EOF\n", "EOF\n", "&&", "|",
            ";", "for i in ", "do\n", "done\n", "if ", "fi\n", "bash -c ", "eval ", "docker run -e ", "srun ",
            "export ", "swift rollout ", "--vllm_data_parallel_size ", "$@", "9" * 30,
        )]  # fmt: skip

    def __call__(self, data: bytes) -> bool:
        try:
            text = self._decode(data, "x.sh")
            job = self._from_texts([("x.sh", text)])
            json.dumps(self._json(job, self._findings(job)))
            (fixed,), _ = self._fix([("x.sh", text)])
            self._findings(self._from_texts([("x.sh", fixed.text)]))
        except self._refused:
            return False
        return True


TARGETS: dict[str, type[Target]] = {"dumps": Dumps, "logs": Logs, "scripts": Scripts}
