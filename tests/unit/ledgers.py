"""Ledgers of a simulated job: processes that issue collectives, wait for each other, and hang when they must.

A process is a list of actions. Time only passes in `Work` and where ranks wait for each other, so that what a
job's ledgers look like at any moment follows from the actions: a hang is not written by hand, it happens.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.record import read_directory
from lockstep.stacks.judging import judge
from lockstep.verdict import Verdict

START = 10_000.0
UPTIME = 50.0
"""The monotonic clock at START."""
Op = tuple[str, str, int | None]
AR: Op = ("all_reduce", "Float", 64)
RS: Op = ("reduce_scatter", "BFloat16", 1000)
AG: Op = ("all_gather", "BFloat16", 2000)
DP: Op = ("all_reduce", "Int", 2)
BC: Op = ("broadcast", "BFloat16", 512)
_IDLE = ("vllm/v1/engine/core.py:505 _process_input_queue", "futex")


@dataclass(frozen=True)
class Issue:
    group: str
    op: Op


@dataclass(frozen=True)
class Pass:
    name: str
    step: int | None = None


@dataclass(frozen=True)
class Work:
    """Time that passes in `at`: running (cpu), or blocked in `park`."""

    seconds: float
    at: str = "trainer.py:1 train"
    park: str | None = None
    cpu: float = 1.0


@dataclass(frozen=True)
class Post:
    what: str


@dataclass(frozen=True)
class Await:
    what: str
    at: str = "http.py:9 post"
    park: str = "receive"


Action = Issue | Pass | Work | Post | Await


@dataclass
class Proc:
    side: str
    role: str
    rank: int
    groups: dict[str, tuple[tuple[int, ...], int]]  # name, or purpose:id -> ranks, own place
    program: list[Action]
    ends: bool = True  # writes an end line; false: it is terminated
    clock: str = "boot"
    dies: float | None = None  # seconds after the start: nothing is written from then on


@dataclass
class _Run:
    proc: Proc
    t: float = START
    pc: int = 0
    issued: dict[str, int] = field(default_factory=dict)
    # what happened, in order: (t, kind, payload)
    story: list[tuple[float, str, Any]] = field(default_factory=list)


class Job:
    """The lines of all files of a job, each with its time; `until` is when those still there stop writing."""

    def __init__(self, procs: Sequence[Proc], *, tail: float = 12.0, seed: int = 0) -> None:
        self.procs = list(procs)
        self._random = random.Random(seed)
        self._runs = [_Run(proc) for proc in procs]
        self._issues: dict[tuple[str, tuple[int, ...]], dict[int, list[float]]] = {}
        self._posted: dict[str, float] = {}
        moved = True
        while moved:
            moved = sum(self._advance(run) for run in self._runs) > 0
        self.until = max(run.t for run in self._runs) + tail
        self.files = {self.name(run.proc): self._lines(run) for run in self._runs}

    @staticmethod
    def name(proc: Proc) -> str:
        return f"{proc.side}-{proc.role.replace(' ', '_')}-{proc.rank}-{100 + proc.rank}.jsonl"

    def hung(self) -> bool:
        return any(run.pc < len(run.proc.program) for run in self._runs)

    def write(
        self,
        directory: Path,
        *,
        at: float | None = None,
        without: Sequence[str] = (),
        change: Callable[[str, bytes], bytes] | None = None,
        lag: Callable[[], float] = lambda: 0.0,
        numbered: bool = False,
    ) -> Path:
        """The files as they are at time `at`, each at most `lag()` seconds behind; `numbered`: with lines
        that bear their number.
        """
        folder = directory / "ledgers"
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in self.files.items():
            until = float("inf") if at is None else at - lag()
            data = b"".join(
                line.replace(b"{", b'{"i": %d, ' % i, 1) if numbered else line
                for i, (t, line) in enumerate(lines, 1)
                if t <= until
            )
            if name not in without:
                (folder / name).write_bytes(change(name, data) if change else data)
        return directory

    def add(self, proc: Proc, t: float, **line: Any) -> None:
        """One more line for a process's file."""
        lines = self.files[self.name(proc)]
        lines.append((t, json.dumps({"t": t, **line}).encode() + b"\n"))
        lines.sort(key=lambda item: item[0])

    # -- what happens

    def _advance(self, run: _Run) -> bool:
        """Runs a process until it waits for another one. Whether anything happened."""
        moved = False
        while run.pc < len(run.proc.program):
            action = run.proc.program[run.pc]
            if isinstance(action, Issue):
                ranks, place = run.proc.groups[action.group]
                issues = self._issues.setdefault((action.group, ranks), {r: [] for r in range(len(ranks))})
                seq = run.issued.get(action.group, 0) + 1
                if len(issues[place]) < seq:
                    issues[place].append(run.t)
                    run.story.append((run.t, "issued", (action, seq)))
                    moved = True
                if any(len(times) < seq for times in issues.values()):
                    return moved
                run.issued[action.group] = seq
                run.t = max(times[seq - 1] for times in issues.values()) + 0.001
                run.story.append((run.t, "completed", action))
            elif isinstance(action, Await):
                if not run.story or run.story[-1][1:] != ("state", action):
                    run.story.append((run.t, "state", action))
                if action.what not in self._posted:
                    return moved
                run.t = max(run.t, self._posted[action.what]) + 0.001
            elif isinstance(action, Work):
                run.story.append((run.t, "state", action))
                run.t += action.seconds
            elif isinstance(action, Post):
                self._posted.setdefault(action.what, run.t)
            else:
                run.t += 0.0001
                run.story.append((run.t, "boundary", action))
            run.pc += 1
            moved = True
        return moved

    # -- what is written of it

    def _lines(self, run: _Run) -> list[tuple[float, bytes]]:
        proc = run.proc
        done = run.pc == len(proc.program)
        last = run.t + 0.01 if done and proc.ends else self.until
        if proc.dies is not None:
            last = START + proc.dies
        numbers = {name: g for g, name in enumerate(proc.groups)}
        book = _Book(numbers)
        who = {"side": proc.side, "role": proc.role, "rank": proc.rank, "pid": 100 + proc.rank}
        book.add(START, k="process", v=1, **who, clock=proc.clock)
        alike: dict[tuple[str, tuple[int, ...]], int] = {}
        for name, (ranks, place) in proc.groups.items():
            group = {"name": name, "lib": f"lib:{name}", "backend": "gloo", "ranks": ranks, "rank": place}
            purpose, _, id = name.partition(":")
            if id:
                turn = alike[purpose, ranks] = alike.get((purpose, ranks), 0) + 1
                group |= {"name": f"{purpose}#{turn}" if turn > 1 else purpose, "id": id}
            book.add(START, k="group", g=numbers[name], **group)
        pulse = START + self._random.uniform(0.1, 1.0)
        for t, kind, what in [*run.story, (last, "stop", None)]:
            while pulse < min(t, last):
                book.pulse(pulse)
                pulse += self._random.uniform(0.8, 1.6)
            if t <= last:
                book.happen(t, kind, what)
        if done and proc.ends and proc.dies is None:
            book.pulse(last)
            book.add(last, k="end")
        return book.lines


class _Book:
    def __init__(self, numbers: dict[str, int]) -> None:
        self.lines: list[tuple[float, bytes]] = []
        self._numbers = numbers
        self._ops: dict[Op, int] = {}
        self._issued = dict.fromkeys(numbers, 0)
        self._completed = dict.fromkeys(numbers, 0)
        self._digest = dict.fromkeys(numbers, b"")
        self._tally: dict[str, dict[str, int]] = {name: {} for name in numbers}
        self._stream: dict[str, list[list[int]]] = {name: [] for name in numbers}
        self._passed: dict[str, int] = {}
        self._state: Work | Await = Work(0.0)
        self._wait: tuple[Issue, int] | None = None
        self._cpu, self._cpu_t = 0.0, START
        self._before: tuple[Any, ...] = ()
        self._shown: dict[str, int] = {}

    def add(self, t: float, **line: Any) -> None:
        times = {"t": round(t, 4), "m": round(t - START + UPTIME, 4)}
        self.lines.append((t, json.dumps({**times, **line}).encode() + b"\n"))

    def happen(self, t: float, kind: str, what: Any) -> None:
        self._tick(t)
        if kind == "state":
            self._state = what
        elif kind == "issued":
            action, seq = what
            self._issue(t, action)
            self._wait = (action, seq)
        elif kind == "completed":
            self._completed[what.group] += 1
            self._wait = None
        elif kind == "boundary":
            self._boundary(t, what)

    def _issue(self, t: float, action: Issue) -> None:
        name, op = action.group, action.op
        if op not in self._ops:
            self._ops[op] = len(self._ops)
            self.add(t, k="op", id=self._ops[op], op=op[0], dtype=op[1], n=op[2])
        self._issued[name] += 1
        self._digest[name] = hashlib.sha256(self._digest[name] + repr(op).encode()).digest()[:8]
        self._tally[name][op[0]] = self._tally[name].get(op[0], 0) + 1
        stream = self._stream[name]
        if stream and stream[-1][0] == self._ops[op]:
            stream[-1][1] += 1
        else:
            stream.append([self._ops[op], 1])

    def _boundary(self, t: float, boundary: Pass) -> None:
        n = self._passed[boundary.name] = self._passed.get(boundary.name, 0) + 1
        moved = [name for name, stream in self._stream.items() if stream]
        g = self._numbers
        c = {str(g[m]): [self._issued[m], self._digest[m].hex(), self._tally[m]] for m in moved}
        s = {str(g[m]): self._stream[m] for m in moved}
        self.add(t, k="boundary", b=boundary.name, n=n, step=boundary.step, c=c, s=s)
        self._stream.update({name: [] for name in moved})
        self._shown.clear()

    def _tick(self, t: float) -> None:
        busy = self._state.cpu if isinstance(self._state, Work) and not self._wait else 0.0
        self._cpu += busy * (t - self._cpu_t)
        self._cpu_t = t

    def pulse(self, t: float) -> None:
        self._tick(t)
        c = {str(g): [self._issued[name], self._completed[name]] for name, g in self._numbers.items()}
        line: dict[str, Any] = {"c": c, "beat": 0, "cpu": round(self._cpu, 3), "park": self._state.park}
        at = [self._state.at]
        if self._wait:
            action, seq = self._wait
            op, dtype, n = action.op
            place, g = f"{action.group}.py:7", self._numbers[action.group]
            line["w"] = {"g": g, "seq": seq, "op": op, "dtype": dtype, "n": n, "at": place}
            line["park"] = "futex"
            at = [f"{place} {op}"]
        if self._before == (c, at):
            untold = {m: s for m, s in self._stream.items() if s and self._shown.get(m) != self._issued[m]}
            line["s"] = {str(self._numbers[m]): [self._issued[m], s] for m, s in untold.items()}
            self._shown.update({m: self._issued[m] for m in untold})
        self._before = c, at
        self.add(t, k="pulse", at=["threading.py:355 wait", *at], **line)


# -- jobs


def trainers(steps: int, ranks: int = 2, *, generate: bool = True, sync: int = 2) -> list[Proc]:
    """Training ranks: weight sync and generate (rank 0 talks to the rollout), then a step."""
    procs = []
    world = tuple(range(ranks))
    for rank in world:
        groups = {"trainer.world": (world, rank), "trainer.zero": (world, rank)}
        program: list[Action] = [Pass("train begin"), Issue("trainer.world", AR)]
        if rank == 0:
            groups["weight-sync"] = ((0, 1, 2), 2)
        for step in range(1, steps + 1):
            if generate:
                first = rank == 0
                program += [Pass("weight sync begin", step)]
                program += [Post(f"sync {step}"), *[Issue("weight-sync", BC)] * sync] if first else []
                program += [Pass("weight sync end", step), Pass("generate begin", step)]
                program += [Post(f"request {step}")] if first else []
                program += [Await(f"answer {step}.{core}") for core in (0, 1)] if first else []
                program += [Issue("trainer.world", ("broadcast", "Byte", None)), Pass("generate end", step)]
            program += [Work(0.3, f"trainer.py:{step} loss"), Issue("trainer.zero", RS)]
            program += [Issue("trainer.zero", AR), Issue("trainer.zero", AR), Issue("trainer.zero", AG)]
            program += [Issue("trainer.world", AR), Pass("step", step)]
        program += [Pass("eval begin"), Issue("trainer.world", AR), Pass("eval end"), Pass("train end")]
        procs.append(Proc("trainer", "rank", rank, groups, program))
    return procs


def engines(steps: int, wave: int = 8, sync: int = 2) -> list[Proc]:
    """Two engine cores in lockstep. They are terminated when training is over, so no end line."""
    procs = []
    for rank in (0, 1):
        program: list[Action] = [Issue("rollout.dp", DP)] * 3
        for step in range(1, steps + 1):
            program += [Await(f"sync {step}", *_IDLE)]
            program += [Pass("weight sync begin"), *[Issue("weight-sync", BC)] * sync]
            program += [Pass("weight sync end")]
            program += [Await(f"request {step}", *_IDLE)]
            program += [Work(0.2, "vllm/v1/engine/core.py:99 step"), *[Issue("rollout.dp", DP)] * wave]
            program += [Pass("wave end"), Post(f"answer {step}.{rank}")]
        program += [Await("never", *_IDLE)]
        groups = {"rollout.dp": ((0, 1), rank), "weight-sync": ((0, 1, 2), rank)}
        procs.append(Proc("rollout", "engine core", rank, groups, program, ends=False))
    return procs


def whole_job(steps: int = 3) -> list[Proc]:
    return trainers(steps) + engines(steps)


def incident(steps: int = 3) -> list[Proc]:
    """A wave that only engine core 0 starts: core 1 never gets its request, and has nothing to answer."""
    procs = whole_job(steps)
    core = procs[3]
    at = max(i for i, action in enumerate(core.program) if action == Await(f"request {steps}", *_IDLE))
    core.program[at:] = [Post(f"answer {steps}.1"), Await("never", *_IDLE)]
    return procs


def pair(late: list[Action], *, before: int = 3, after: int = 2) -> list[Proc]:
    """Two trainer ranks; rank 1 does `late` while rank 0 waits in collective number `before` + 1."""
    procs = []
    for rank in (0, 1):
        program: list[Action] = [Pass("train begin"), *[Issue("trainer.world", AR)] * before, Pass("step", 1)]
        program += late if rank == 1 else []
        program += [*[Issue("trainer.world", AR)] * after, Pass("step", 2), Pass("train end")]
        procs.append(Proc("trainer", "rank", rank, {"trainer.world": ((0, 1), rank)}, program))
    return procs


def verdict(
    job: Job, directory: Path, *, now: float | None = None, settle_s: float = 5.0, **how: Any
) -> Verdict:
    """The verdict on the job's files; `how` goes to `Job.write`."""
    return judge(read_directory(job.write(directory, **how)), now=now, settle_s=settle_s)
