"""Every cause that a command can name: what it is, what speaks for it, and what to do. The only list.

docs/causes.md is made from it: `python -m lockstep.causes > docs/causes.md`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.remedies import catalogue as do
from lockstep.remedies.model import Remedy
from lockstep.remedies.tried import TRIED

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cause:
    """Why a job hung or failed."""

    id: str
    sentence: str
    """What happened, as a clause without a capital and a full stop."""
    remedies: tuple[Remedy, ...]
    """In the order in which to try them."""
    about: str = ""
    """What there is to know of it, for the page."""
    rests_on: str = ""
    """What must be there for `diagnose` to find it."""
    against: str = ""
    no_help: str = ""


_ALL = (
    Cause(
        "offline-wave-race",
        "a rollout wave ended while one data-parallel rank's worker was still adding requests; its next "
        "request began a wave that the other engines know nothing of",
        (*(remedy for remedy in TRIED if remedy.helps), do.LATER_SWIFT),
        about="""vLLM's data-parallel engines step together. In offline data-parallel mode (`swift
rollout --vllm_data_parallel_size N`, synchronous engine) each has its own worker, which adds requests
one by one, and there is no coordinator. Every 32 steps the engines agree whether anybody has work. If
nobody has at that moment, while one worker is still adding, the wave ends; that worker's next request
begins a new one on its engine alone, which waits in the step's all-reduce for engines that nobody has
told.""",
        rests_on="""the group is the rollout's data-parallel group; the collective is the all-reduce of
an engine step (as many elements as ranks in vLLM 0.11.0) and a rank is proven absent from it (both
needed). Two of: the number is the first step of a wave, (number - 206) mod 32 = 1 in vLLM 0.11.0 with
default CUDA graph settings; of two progress bars over equal shares one is complete and one hardly
begun; the missing rank was alive and only heard of the timeout.""",
        against="""another place in the wave; no line tells what the missing rank did. Ruled out by a
coordinator or API server in the log: these wake the other engines.""",
        no_help="""a longer timeout, eager mode, gloo for the step's all-reduce
(`VLLM_DISABLE_NCCL_FOR_DP_SYNCHRONIZATION=1`).""",
    ),
    Cause(
        "request-failed",
        "a worker of the rollout failed before it added its requests; its engine got no work, and its peers "
        "wait for it",
        (do.MEND_THE_REQUEST,),
        about="""The engines of a rollout wait for each other as in the offline wave race, but here one
worker raised an exception: an image that it could not read, a prompt that is too long. Found by `run`,
`verify` and `faults` from ledgers, in which the worker says that its generation failed.""",
    ),
    Cause(
        "online-dense-dp-out-of-step",
        "data-parallel engines of a dense model behind one server got out of step: one runs steps that the "
        "others do not",
        (do.LATER_VLLM, do.ONE_SERVER_PER_GPU),
        about="""Data parallelism of a dense model behind one server (vLLM issue 28224): an engine
without requests runs dummy steps and gets out of step with the others.""",
        rests_on="""the step's all-reduce of the data-parallel group timed out; a coordinator or API
server is in the log; ranks are at different steps.""",
        against="the first step of a wave. Not for expert layers.",
    ),
    Cause(
        "mixed-batch",
        "the ranks' batches differ in kind (one has no image), so do their collectives in size",
        (do.ONE_KIND_PER_BATCH, do.TOUCH_ALL_PARAMETERS),
        about="""The ranks' batches are of different kinds, say one without an image, and so different
parameters take part (ms-swift issue 9104).""",
        rests_on="""at one number of one trainer's group two ranks issued the same operation with
different sizes, and the log speaks of images (both needed).""",
        against="""not claimed where no line speaks of images, nor of a rollout's group.""",
    ),
    Cause(
        "rank-dependent-control-flow",
        "ranks took different paths and issued different collectives",
        (do.SAME_PATH, do.RECORD_COLLECTIVES),
        about="""Ranks took different paths: an `if rank == 0` around a collective, a loop that ends
earlier on one rank.""",
        rests_on="""within one group that is known to be one: different operations at one number; an
all-reduce, broadcast or reduce of different sizes at one number (of gathers and scatters only
*possible*); a rank that has completed a number in which another still waits. Or torch's or gloo's own
mismatch report (`op.preamble.length <= op.nbytes`). Or two groups that each lack a rank which waits in
the other, both ranks known to be in both. NCCL's "collective mismatch around rank" makes it *possible*.""",
        against="ruled out if a process ended before.",
    ),
    Cause(
        "blocked-elsewhere",
        "a rank waits for a lock, a pipe, a socket or a queue, while its peers wait for it in a collective",
        (do.LOOK_AT_WHAT_IT_WAITS_FOR, do.RECORD_COLLECTIVES),
        about="""Nothing shows that the rank took another path: it passed the same boundaries and issued the
same collectives as its peers, and then waits for something that is no rank. Found by `run` and `verify` from
ledgers, in which the rank's main thread says what it waits for and in which line.""",
    ),
    Cause(
        "rank-died",
        "a rank ended before the others began to wait for it",
        (do.READ_THE_DEAD_RANKS_LOG, do.RESTART),
        rests_on="""before anybody's wait ended: an exit code by a signal, a crash, `Killed`, a dead
engine, Ray actor, node or data loader, a failed GPU (Xid, ECC, CUDA error), no more threads, a
scheduler's end, SIGTERM or SIGHUP to the launcher.""",
        against="""ruled out if somebody's wait had ended before: watchdogs end processes (exit code -6),
agents and schedulers end their peers (-15; those codes never count), engines are given up by who got no
answer. An exit code from 1 to 127 alone, or closed connections alone, make it *possible*: the program
ended by itself, its error is quoted.""",
    ),
    Cause(
        "never-connected",
        "the ranks never completed a single collective: they did not reach each other",
        (do.SAME_NETWORK, do.NO_SHARED_PORT),
        rests_on="""a rendezvous, store or gloo connection timed out, or a port was in use, before
anything else; the first store-based barrier was not complete; or all ranks of a group that the log
shows wait in its first collective with nothing completed.""",
        against="""a rank that did not wait: it may have come late. Something slow that had begun. A key
for a pair of ranks (send and receive). Ruled out if another group has completed collectives, if NCCL's
`Init COMPLETE` is there for all ranks, or if the job had trained.""",
    ),
    Cause(
        "slow-storage-or-rank",
        "a rank was busy with something slow for longer than the timeout",
        (do.LONGER_TIMEOUT, do.WORK_BEFORE_TRAINING),
        rests_on="""the last thing that had begun before the wait was a checkpoint, a data preparation or
a storage error, and it had not ended; the others wait and one rank is proven absent; it went on after
the others had given up. Two of these, the first is needed.""",
        against="it had ended, or steps followed it.",
    ),
    Cause(
        "weight-sync-interrupted",
        "the transfer of weights from the trainer to the rollout broke off",
        (do.KEEP_THE_SERVER, do.ONE_JOB_PER_HOST),
        rests_on="""a call of the weight sync (`/init_communicator/`, `/update_…/`) failed before
anybody's wait ended, or an NCCL, HCCL or port error ends a traceback through such a call.""",
        against="ruled out if a collective had timed out before.",
    ),
    Cause(
        "out-of-memory-first",
        "a rank ran out of memory; what timed out only waited for it",
        (do.LESS_MEMORY, do.RESTART),
        rests_on="""a device or the host ran out of memory before anybody's wait ended. One line is
enough: it says so itself.""",
        against="""ruled out if somebody's wait had ended before, or if no clock says which came first.
Nothing at all if training went on to its end. Ray's list of possible reasons is no evidence.""",
    ),
    Cause(
        UNKNOWN,
        "the input does not tell",
        (do.RECORD_COLLECTIVES,),
        about="""There is a timeout or a failure, and no cause has enough evidence. What is known is
reported: who waited for whom, in whose group.""",
    ),
)

CAUSES: Mapping[str, Cause] = {cause.id: cause for cause in _ALL}

_HEAD = """# Causes

What a command can name as the cause of a hang or a failure. `lockstep diagnose` finds one by a rule in
`src/lockstep/diagnose/causes/`; for each rule the tests have a log in which it must be found and one in
which it must not. `run`, `verify` and `dumps` find one in the record: `src/lockstep/verdict/cause.py`.
Remedies stand in the order in which to try them.

A timeout of any library is a wait that ended, never a cause; what ends behind it is its consequence
([diagnose.md](diagnose.md)).

Precedence: whatever ended or exhausted a rank explains every wait for that rank, so those causes come first.
A rollout's group comes before a trainer's: the trainer waits for the rollout, never the other way round.
"""


def page() -> str:
    """Return docs/causes.md."""
    return "\n".join([_HEAD, *map(_section, CAUSES.values())])


def _section(cause: Cause) -> str:
    sentence = f"{cause.sentence[0].upper()}{cause.sentence[1:]}."
    lines = [f"## {cause.id}", "", textwrap.fill(sentence, 110, break_on_hyphens=False), ""]
    if cause.about:
        about = " ".join(cause.about.split())
        lines += [textwrap.fill(about, 110, break_on_hyphens=False, break_long_words=False), ""]
    parts = [("Rests on", cause.rests_on), ("Against", cause.against), ("Remedies", _remedies(cause)),
             ("Does not help", cause.no_help)]  # fmt: skip
    for name, text in parts:
        if text:
            told = f"- **{name}:** {' '.join(text.split())}"
            lines.append(
                textwrap.fill(
                    told, 110, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
                )
            )
    return "\n".join(lines) + "\n"


def _remedies(cause: Cause) -> str:
    """Return the names; with the id for `lockstep remedy` where a remedy is a file."""
    return "; ".join(
        f"{remedy.name} (`{remedy.id}`)" if remedy.file else remedy.name for remedy in cause.remedies
    )


if __name__ == "__main__":
    print(page(), end="")
