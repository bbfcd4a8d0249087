"""Jobs of several nodes: whether the commands of all scripts make one whole job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from lockstep.audit import sources as facts
from lockstep.audit.checks.ports import LOCAL_HOSTS
from lockstep.audit.devices import launcher_value
from lockstep.audit.model import Finding, Job, Place, Process, Severity, Value, literal, unknown

DEFAULT_ADDRESS = "127.0.0.1"
"""Where torchrun meets without --master_addr (torch/distributed/run.py)."""
_RANKS_SHOWN = 16


@dataclass(frozen=True, slots=True)
class _Node:
    """One node of a job as a trainer's command has it; None for what is given and cannot be told."""

    process: Process
    count: int
    rank: int | None
    address: Value | None
    """None where it is not given."""
    port: Value | None

    @property
    def place(self) -> Place:
        return self.process.at("NODE_RANK" if self.process.env("NODE_RANK") is not None else "NNODES")


def check(job: Job) -> Iterator[Finding]:
    groups: dict[tuple[str, int], list[_Node]] = {}
    for process in [*job.side("trainer"), *(p for p in job.unread if p.launcher is not None)]:
        node = _node(process)
        if node is not None:
            groups.setdefault((process.program, node.count), []).append(node)
    for nodes in groups.values():
        yield from _twice(nodes)
        yield from _beyond(nodes)
        yield from _addresses(nodes)
        yield from _missing(nodes)
    yield from _counts_differ([nodes[0] for nodes in groups.values()])


def _node(process: Process) -> _Node | None:
    """The node that a command starts; None for a job of one node and where torchrun finds the others by
    itself."""
    if process.launcher is not None and (
        not process.launcher or {"rdzv_backend", "rdzv_endpoint", "standalone"} & process.launcher.keys()
    ):
        return None
    value = launcher_value(process, "nnodes", "NNODES")
    count = value.number() if value is not None else None
    if count is None or count < 2:
        return None
    rank = launcher_value(process, "node_rank", "NODE_RANK")
    # One command for all nodes: srun, mpirun and loops give each its rank in a way that is not seen here.
    spread = process.command.in_loop or process.command.machine.startswith(("job", "mpi"))
    number = rank.number() if rank is not None else None if spread else 0
    if rank is not None and rank.default:
        number = None
    return _Node(
        process,
        count,
        number,
        _sure(launcher_value(process, "master_addr", "MASTER_ADDR")),
        _sure(launcher_value(process, "master_port", "MASTER_PORT")),
    )


def _sure(value: Value | None) -> Value | None:
    """A value that no environment replaces; an unknown one for a default."""
    return unknown(value.text, "default") if value is not None and value.default else value


def _together(one: _Node, other: _Node) -> bool:
    """Whether two commands run at the same time: not one after the other in one shell."""
    mine, theirs = one.process, other.process
    return (
        mine.place.path != theirs.place.path
        or mine.command.background
        or mine.command.machine != theirs.command.machine
    )


def _twice(nodes: list[_Node]) -> Iterator[Finding]:
    for one, other in combinations(nodes, 2):
        if one.rank is None or one.rank != other.rank or not _together(one, other):
            continue
        yield Finding(
            "node-rank-twice",
            Severity.HAZARD,
            other.place,
            f"two commands start node rank {one.rank} of {one.count}",
            f"{one.process.place} and {other.process.place} both are node {one.rank}"
            f"{' (the default where none is given)' if other.rank == 0 else ''}. The other "
            "nodes' ranks are missing: torchrun waits for them, and the job does not begin.",
            (facts.MAIN, facts.TORCHRUN),
            "Give each node its own NODE_RANK, from 0 on.",
        )
        return


def _beyond(nodes: list[_Node]) -> Iterator[Finding]:
    for node in nodes:
        if node.rank is not None and node.rank >= node.count:
            yield Finding(
                "node-rank-beyond",
                Severity.HAZARD,
                node.place,
                f"node rank {node.rank} of {node.count} nodes",
                f"Node ranks count from 0: with {node.count} nodes the last is {node.count - 1}.",
                (facts.TORCHRUN,),
                "Correct NODE_RANK or NNODES.",
            )


def _addresses(nodes: list[_Node]) -> Iterator[Finding]:
    for one, other in combinations(nodes, 2):
        if not _together(one, other) or (one.rank is not None and one.rank == other.rank):
            continue
        for name, default, mine, theirs in (
            ("MASTER_ADDR", DEFAULT_ADDRESS, one.address, other.address),
            ("MASTER_PORT", "29500", one.port, other.port),
        ):
            a, b = mine or literal(default), theirs or literal(default)
            if not a.known or not b.known or a.text == b.text:
                continue
            if name == "MASTER_ADDR" and {a.text, b.text} <= set(LOCAL_HOSTS):
                continue
            yield Finding(
                f"{name.lower().replace('_', '-')}-differs",
                Severity.HAZARD,
                other.process.at(name),
                f"the nodes do not meet: {name} is {a.text[:80]} on one and {b.text[:80]} on another",
                f"{one.process.place} has {a.text[:80]}, {other.process.place} has {b.text[:80]} "
                f"(without a value torchrun takes {default}). Each waits where the other does not come.",
                (facts.MAIN, facts.TORCHRUN),
                f"Give all nodes the same {name}: that of node 0.",
            )
            return


def _missing(nodes: list[_Node]) -> Iterator[Finding]:
    first = nodes[0]
    ranks = {node.rank for node in nodes}
    if None in ranks:
        return
    missing = [rank for rank in range(min(first.count, 1 << 16)) if rank not in ranks]
    if not missing:
        return
    far = any(
        node.address is not None and (not node.address.known or node.address.text not in LOCAL_HOSTS)
        for node in nodes
    )
    alone = len(nodes) == 1
    shown = ", ".join(map(str, missing[:_RANKS_SHOWN])) + (" ..." if len(missing) > _RANKS_SHOWN else "")
    address = (
        "" if far else f" Without MASTER_ADDR it waits at {DEFAULT_ADDRESS}, where no other host can come."
    )
    yield Finding(
        "node-missing",
        Severity.WARNING if alone and far else Severity.HAZARD,
        first.place,
        f"NNODES is {first.count}, and no command here starts node rank {shown}",
        f"torchrun waits until all {first.count} nodes have come, and gives up after minutes.{address}",
        (facts.MAIN, facts.TORCHRUN),
        "Give the other nodes' scripts as further arguments"
        + ("." if far else ", and set MASTER_ADDR to node 0's address on all; or NNODES=1."),
    )


def _counts_differ(nodes: list[_Node]) -> Iterator[Finding]:
    for one, other in combinations(nodes, 2):
        if one.process.program == other.process.program and _together(one, other):
            yield Finding(
                "nnodes-differ",
                Severity.HAZARD,
                other.process.at("NNODES"),
                f"the nodes do not agree on their number: {one.count} and {other.count}",
                f"{one.process.place} waits for {one.count} nodes, {other.process.place} for {other.count}.",
                (facts.TORCHRUN,),
                "Give all nodes the same NNODES.",
            )
            return
