"""Plays rounds until the time is over; ends engines that hang, starts them anew, and goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from lockstep.experiments.soak.client import Asking
from lockstep.experiments.soak.pauses import Pauses
from lockstep.experiments.soak.record import Record, Tally
from lockstep.experiments.soak.rollout import Rollout, RolloutError
from lockstep.experiments.soak.rounds import Round, plan, warm_up
from lockstep.run.process_tree import ProcessTree
from lockstep.run.run_lock import mark, remove
from lockstep.run.supervise import Limits
from lockstep.stacks.base import Job, Prompt, Soak

LOAD = Path(__file__).with_name("load.py")
LOOK_AFTER_S = 2.0
"""A round that takes longer is looked at by its ledgers."""
LOOK_S = 0.5
SLOW_S = 180.0
"""A round without an answer for so long has failed, though its ledgers do not say that it hangs."""
FAILURES = 3
"""Rounds that fail one after another end the soak: what hangs is not what is wrong then."""
KEPT = 5
"""Folders of hangs that are kept, the first ones."""


class SoakError(RuntimeError):
    """The soak cannot go on; names the reason."""


@dataclass(frozen=True)
class Played:
    """How a round ended."""

    kind: str
    """`round` (answered), `hang` or `failed`: what its line in the record is called."""
    seconds: float
    pauses: int
    paused_s: float
    text: str = ""
    group: str = ""
    cause: str = ""


Tell = Callable[[Record, str], None]
"""Called when something has happened, with a sentence; empty after a round that was answered."""


class Arm:
    """One soak: one record, one remedy, one folder."""

    def __init__(
        self,
        soak: Soak,
        spec: Job,
        record: Record,
        prompts: Sequence[Prompt],
        folder: Path,
        limits: Limits,
        tell: Tell,
    ) -> None:
        """`folder` gets a folder for each start of the engines; those without a hang are removed."""
        self._soak, self._spec, self._record, self._prompts = soak, spec, record, prompts
        self._folder, self._limits, self._tell = folder, limits, tell

    def run(self, over: Callable[[Tally], bool]) -> None:
        """Plays until `over`, which is asked before each start of the engines and before each round.

        Raises SoakError, StartError, OSError.
        """
        with ProcessTree() as tree:
            while not over(self._record.tally):
                self._one_life(tree, over)
        if left := tree.leftovers():
            raise SoakError("; ".join(left))

    def _one_life(self, tree: ProcessTree, over: Callable[[Tally], bool]) -> None:
        """From a start of the engines to a round that they do not answer, or the end of the soak."""
        record = self._record
        run_dir = self._folder / f"start-{record.tally.starts}"
        if not remove(run_dir):  # of a soak that was killed before it could note its start
            raise SoakError(f"{run_dir}: lockstep did not make this folder; give another --out or --name")
        mark(run_dir)
        begun, known = time.monotonic(), len(record.tally.hangs)
        try:
            with Rollout(self._spec, run_dir, tree, self._limits) as rollout:
                warmed = self._play(rollout, warm_up(record.tally.settings, self._prompts))
                if warmed.kind != "round":
                    raise RolloutError(f"its first round {warmed.kind}: {warmed.text}")
                rollout.await_counted()
                seconds = time.monotonic() - begun
                record.add("start", s=round(seconds, 1), host=host(), ledgers=str(run_dir / "ledgers"))
                self._tell(record, f"engines ready after {seconds:.0f} s")
                with self._load(tree):
                    self._rounds(rollout, over)
        except RolloutError as error:
            raise SoakError(f"the rollout did not start: {error}") from error
        except (KeyboardInterrupt, SystemExit):
            remove(run_dir)
            raise
        if len(record.tally.hangs) == known or known >= KEPT:
            remove(run_dir)
        failures = record.tally.failures[-FAILURES:]
        if len(failures) == FAILURES and failures[0]["n"] == record.tally.rounds - FAILURES:
            raise SoakError(f"{FAILURES} rounds failed one after another: {failures[-1]['text']}")

    @contextlib.contextmanager
    def _load(self, tree: ProcessTree) -> Iterator[None]:
        """Cores are kept busy only while rounds are played: a start would take twice as long for it."""
        if not (processes := self._record.tally.settings.load):
            yield
            return
        argv = [sys.executable, "-S", str(LOAD), str(processes)]
        busy = tree.start("load", argv, log=self._folder / "load.log")
        try:
            yield
        finally:
            tree.stop(busy, 0.0)

    def _rounds(self, rollout: Rollout, over: Callable[[Tally], bool]) -> None:
        while not over(self._record.tally):
            number = self._record.tally.rounds
            asked = plan(self._record.tally.settings, number, self._prompts)
            played = self._play(rollout, asked)
            self._note(number, asked, played)
            if played.kind != "round":
                return

    def _play(self, rollout: Rollout, asked: Round) -> Played:
        begun = time.monotonic()
        asking = Asking(self._soak, rollout.port, asked)
        with Pauses(rollout.workers, asked.pauses[: len(rollout.workers)]) as pauses:
            asking.start()
            kind, text, group, cause = self._await(rollout, asking, begun)
        seconds = time.monotonic() - begun
        if kind == "hang" and not self._record.tally.hangs:
            rollout.collect()
        return Played(kind, seconds, pauses.times, pauses.seconds, text, group, cause)

    def _await(self, rollout: Rollout, asking: Asking, begun: float) -> tuple[str, str, str, str]:
        """Kind, text, group and cause of how a round ends."""
        wait = LOOK_AFTER_S
        while not asking.answered.wait(wait):
            wait = LOOK_S
            try:
                verdict = rollout.look()
            except RolloutError as error:
                return "failed", str(error), "", ""
            if rollout.is_hang(verdict) and not asking.answered.is_set():
                group = verdict.group.name if verdict.group else ""
                return "hang", verdict.sentence, group, verdict.cause
            if time.monotonic() - begun >= SLOW_S:
                return "failed", f"no answer after {SLOW_S:.0f} s: {verdict.sentence}", "", ""
        return ("failed", asking.failure, "", "") if asking.failure else ("round", "", "", "")

    def _note(self, number: int, asked: Round, played: Played) -> None:
        more = {"text": played.text, "group": played.group, "cause": played.cause}
        self._record.add(
            played.kind,
            n=number,
            s=round(played.seconds, 3),
            requests=len(asked.prompts),
            pauses=played.pauses,
            paused_s=round(played.paused_s, 3),
            load=round(os.getloadavg()[0], 2),
            **(more if played.kind != "round" else {}),
        )
        seed = self._record.tally.settings.seed
        what = f"round {number} (seed {seed}): {played.kind}: {played.text}"
        self._tell(self._record, what if played.kind != "round" else "")


def host() -> str:
    """The machine in words, without its name."""
    return f"{len(os.sched_getaffinity(0))} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"
