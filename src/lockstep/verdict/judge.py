"""Ledgers in, verdict out. Nothing else decides who diverged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lockstep.record import PULSE_S, Ledger, Problem

from .boundary_order import Ways, ways
from .cause import explain
from .clocks import notes
from .compare import MOST_LOOKED_AT, Difference, difference, in_streams, last_counts
from .ending import cut_short, gone_at, proven_first, told
from .groups import gather, order
from .model import Kind, Verdict
from .names import Names
from .patience import may_move
from .quiescence import Window, last_still, silent_for, still
from .sentence import group_text, hang_text, parts_text
from .views import (
    boundary_view,
    difference_views,
    group_view,
    hang_views,
    left_out,
    parted_views,
    passed,
    shared_view,
    span_text,
)
from .wait_graph import Cause, Hang, find

PATIENCE_S = 60.0
"""Without any movement for this long, ranks that differ are stuck also if one sleeps or is not seen."""


NO_NAMES = Names()


def judge(
    ledgers: Sequence[Ledger],
    *,
    settle_s: float = 5.0,
    patience_s: float = PATIENCE_S,
    now: float | None = None,
    names: Names = NO_NAMES,
) -> Verdict:
    """The verdict on a job by its ledgers, by the rules in docs/ledger.md.

    With `now` (seconds since the epoch) the job is taken to be running, and to have moved if it moves now.
    Without it the files are all there will ever be: the latest time in them counts as now, and a hang stays
    one even if the processes stirred when they were stopped.

    `names` are those of the stack: by them some causes are told.
    """
    case = _Case(ledgers, settle_s, patience_s, now)
    verdict = case.verdict()
    cause, evidence = explain(verdict, case.ledgers, case.now, names, apart=case.apart)
    return replace(verdict, cause=cause, evidence=evidence)


class _Case:
    def __init__(
        self, ledgers: Sequence[Ledger], settle_s: float, patience_s: float, now: float | None
    ) -> None:
        self.settle_s = settle_s
        self.patience_s = patience_s
        self.live = now is not None
        self.ledgers = order(ledgers)
        self.now = now if now is not None else max((x.last_t for x in self.ledgers), default=0.0)
        self.groups, self.problems = gather(self.ledgers)
        self.trainers = [x for x in self.ledgers if x.process and x.process.side == "trainer"]
        self.finished = bool(self.trainers) and all("train end" in x.passed for x in self.trainers)
        self.broken_off = any(
            x.ended is not None and not told(x) and "train end" not in x.passed for x in self.trainers
        )
        for ledger in sorted(ledgers, key=lambda x: x.path):
            self.problems += [p for p in ledger.problems if not (p.torn and self._may_be_torn(ledger))]
        self.disorders = {x.disorder: None for x in sorted(ledgers, key=lambda x: x.path) if x.disorder}
        self.problems = [*self.disorders, *(p for p in self.problems if p not in self.disorders)]
        self.window = still(self.ledgers, self.now)
        self.clocks, self.apart = notes(self.ledgers)

    def _may_be_torn(self, ledger: Ledger) -> bool:
        """The rollout is terminated when training has ended: its last line may be cut."""
        return self.finished and ledger.process is not None and ledger.process.side == "rollout"

    def verdict(self) -> Verdict:
        if self.disorders:
            return self._incomplete("")
        differences = sorted(
            (d for group in self.groups if (d := difference(group, every=not self.live))),
            key=lambda d: (d.t, d.group.name),
        )
        if unseen := list(dict.fromkeys(self.groups[0].work.left_out if self.groups else [])):
            what = f"not compared at boundaries: expected at most {MOST_LOOKED_AT} that are out of order"
            self.problems.append(Problem(None, None, f"{len(unseen)} groups from {unseen[0]} on: {what}"))
        if not self.finished:
            stuck = self._stuck(differences)
            if stuck:
                return stuck
        if differences:
            return self._diverged(differences)
        if not self.live and (apart := ways(self.groups, self.trainers)):
            return self._went(apart)
        return self._finished() if self.finished else self._unfinished()

    def _base(self, kind: Kind, sentence: str, window: Window | None = None, **parts: object) -> Verdict:
        window = window or self.window
        if parts.get("left_out"):
            sentence = f"{sentence}; {parts['left_out']} ranks more have no ledger"
        return Verdict(
            kind,
            sentence,
            passed=passed(self.ledgers),
            last_progress=window.start if self.ledgers else None,
            still_s=window.length,
            problems=tuple(self.problems),
            clocks=self.clocks,
            running=self.live and not self.finished and not self.broken_off,
            **parts,  # type: ignore[arg-type]
        )

    # -- hangs

    def _stuck(self, differences: Sequence[Difference]) -> Verdict | None:
        window = self.window if self.live else last_still(self.ledgers, self.now, self.settle_s)
        if window.length < self.settle_s:
            return None
        if self.live:
            compared = {id(d.group) for d in differences}
            rest = (in_streams(group) for group in self.groups if id(group) not in compared)
            differences = [*differences, *(d for d in rest if d)]
        cause = find(self.groups, self.ledgers, window.end, [d.group for d in differences])
        if cause.root is None:
            return None
        if window.length < self.patience_s and may_move(cause.root, self.ledgers, window, self.settle_s):
            return None
        before = next((d for d in differences if d.group is cause.root.group), None)
        others = tuple(f"{d.group.name} differed before{_from(d)}" for d in differences if d is not before)
        return self._hung(
            Kind.STUCK, cause.root, Cause(cause.root, cause.consequences + others), window, before=before
        )

    def _hung(
        self,
        kind: Kind,
        hang: Hang,
        cause: Cause,
        window: Window,
        remark: str = "",
        before: Difference | None = None,
    ) -> Verdict:
        """`before` is a difference that the same group had shown before it hung: the hang began there."""
        group = group_view(hang.group)
        views = hang_views(hang, self.groups, self.now, window.end)
        shared = shared_view(hang.group)
        sentence = f"{group_text(group)}: {hang_text(views)}{remark}"
        seq, waiting, absent = hang.seq, hang.waiting, hang.absent
        if before:
            parted = difference_views(before, self.now)
            if before.boundary or before.seq != hang.seq:
                told = f"{_from(before)}: {parts_text(parted, before.seq)}; now {hang_text(views)}"
                sentence = f"{group_text(group)} differs{told}{remark}"
            if before.seq is not None:
                views = parted_views(views, parted)
                seq, waiting, absent = before.seq, tuple(sorted(hang.waits)), before.absent
        return self._base(
            kind,
            sentence,
            window,
            group=group,
            left_out=left_out(hang.group),
            side=hang.group.side,
            seq=seq,
            ranks=views,
            waiting=waiting,
            absent=absent,
            odd=before.odd if before else (),
            boundary=boundary_view(before.boundary) if before else shared,
            agreed=boundary_view(before.agreed) if before else shared,
            consequences=cause.consequences,
        )

    # -- differences

    def _diverged(self, differences: Sequence[Difference]) -> Verdict:
        first, *others = differences
        group = group_view(first.group)
        views = difference_views(first, self.now)
        waits = [view.rank for view in views if view.state == "waiting"]
        return self._base(
            Kind.DIVERGED,
            f"{group_text(group)} differs{_from(first)}: {parts_text(views, first.seq)}",
            group=group,
            left_out=left_out(first.group),
            side=first.group.side,
            seq=first.seq,
            ranks=views,
            waiting=tuple(waits),
            absent=first.absent,
            odd=first.odd,
            boundary=boundary_view(first.boundary),
            agreed=boundary_view(first.agreed),
            consequences=tuple(f"{d.group.name} differs too{_from(d)}" for d in others),
        )

    def _went(self, apart: Ways) -> Verdict:
        group = group_view(apart.group)
        return self._base(
            Kind.DIVERGED,
            f"{group_text(group)}: {apart.text}",
            group=group,
            side=apart.group.side,
            ranks=apart.show(difference_views(apart.difference, self.now)),
            odd=apart.odd,
            boundary=boundary_view(min(apart.passed.values(), key=lambda b: b.t)),
            agreed=boundary_view(apart.agreed),
        )

    def _ends(self) -> list[Difference]:
        """Groups whose last counts differ for sure. What cannot be told becomes a problem."""
        found = []
        for group in self.groups:
            end = last_counts(group, self.settle_s)
            if isinstance(end, Difference):
                found.append(end)
            elif end is not None:
                self.problems.append(end)
        return sorted(found, key=lambda d: (d.t, d.group.name))

    # -- the rest

    def _finished(self) -> Verdict:
        short = cut_short(self.ledgers, self.trainers, self.groups)
        self.problems += short
        files = {problem.file for problem in short}
        ends = [d for d in self._ends() if not any(d.group.members[r].ledger.path in files for r in d.absent)]
        if ends:
            return self._diverged(ends)
        if self.problems:
            return self._incomplete("")
        issued = {g.name: max(m.issued for m in g.members.values()) for g in self.groups}
        counts = ", ".join(f"{name} {count}" for name, count in issued.items() if count)
        what = f"every rank issued the same collectives: {counts}" if counts else "no group of several ranks"
        steps = max(x.passed.get("step", 0) for x in self.trainers)
        return self._base(Kind.IN_STEP, f"{len(self.ledgers)} processes, {steps} steps: {what}")

    def _unfinished(self) -> Verdict:
        if self.broken_off:
            return self._broken_off()
        if self.problems or not self.trainers:
            return self._incomplete("" if self.problems else "no ledger of a trainer rank")
        if min(self.window.end, max(x.last_t for x in self.trainers)) - self.window.start >= self.settle_s:
            return self._stalled()
        if self.live:
            return self._incomplete("the job is running")
        return self._cut_off()

    def _broken_off(self) -> Verdict:
        """A trainer ended early. Ranks that had waited for the settling time by then had been stuck."""
        ends = {id(d.group): d for d in self._ends() if self._lasted(d)}
        cause = find(self.groups, self.ledgers, self.now)
        if cause.root and id(cause.root.group) in ends:
            return self._diverged([ends[id(cause.root.group)]])
        return self._cut_off()

    def _cut_off(self) -> Verdict:
        """Training did not end: says which process was gone first, and how, and whether that is proven."""
        gone = [x for x in self.ledgers if "train end" not in x.passed and self._gone(x)]
        gone.sort(key=lambda x: (told(x), gone_at(x, self.ledgers)))
        first = gone[0] if gone else None
        proven = first is not None and not self.apart and proven_first(first, self.ledgers)
        ends = sorted((x for x in self.trainers if x.ended is not None), key=lambda x: x.last_t)
        if first is None or (not proven and first not in self.trainers):
            first = ends[0] if ends else None
        if first is None:
            return self._incomplete("the ledgers stop before `train end`")
        if first.ended is None:
            how = "broke off without an end, killed or stopped"
        else:
            how = f"ended, by {first.ended_by}," if first.ended_by else "ended"
        lost = first.label if proven else ""
        return replace(self._incomplete(f"{first.label} {how} before `train end`"), lost=lost)

    def _gone(self, ledger: Ledger) -> bool:
        if ledger.ended is not None or silent_for(ledger, self.now) is not None:
            return True
        ending = any(x.ended is not None for x in self.trainers)
        return ending and ledger in self.trainers and self.now - ledger.last_t >= 2 * PULSE_S

    def _lasted(self, end: Difference) -> bool:
        members = end.group.members
        waiting = [m for m in members.values() if m.ledger.waiting_at(m.ledger.last_t) is not None]
        behind = [members[rank] for rank in end.absent]
        seen = min([m.ledger.last_t for m in behind if m.ledger.ended is None], default=self.now)
        seen = min([seen, *(m.ledger.last_t for m in waiting)])
        return bool(waiting) and seen >= end.t + self.settle_s

    def _stalled(self) -> Verdict:
        cause = find(self.groups, self.ledgers, self.window.end)
        silent = [(x.label, silent_for(x, self.now)) for x in self.ledgers]
        told = [f"{label} is silent: no pulse for {s:.0f} s" for label, s in silent if s is not None]
        if cause.root:
            why = f"{'; '.join(told)}: starved, stopped or gone" if told else "a sleep that will end, so slow"
            return self._hung(Kind.STALLED, cause.root, cause, self.window, f": {why}")
        what = "; ".join((*cause.consequences, *told)) or "no group's ranks differ"
        sentence = f"nothing has moved for {self.window.length:.1f} s: {what}"
        return self._base(Kind.STALLED, sentence, consequences=(*cause.consequences, *told))

    def _incomplete(self, why: str) -> Verdict:
        texts = [why] if why else []
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            texts.append(f"{self.problems[0]}{more}")
        if not self.ledgers and not texts:
            texts.append("there is no ledger")
        return self._base(Kind.INCOMPLETE, f"no claim: {'; '.join(texts)}")


def _from(difference: Difference) -> str:
    number = f" from #{difference.seq} on" if difference.seq is not None else ""
    return number + span_text(difference)
