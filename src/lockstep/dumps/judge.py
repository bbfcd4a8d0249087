"""Dumps in, verdict out: by the same comparison as for ledgers, with what a single look at a job can and
cannot tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lockstep.record import Ledger, Problem
from lockstep.verdict import Kind, RankView, Verdict
from lockstep.verdict.compare import Difference, difference
from lockstep.verdict.groups import JobGroup, ranks_text
from lockstep.verdict.sentence import group_text, operation_text
from lockstep.verdict.views import difference_views, group_view, hang_views
from lockstep.verdict.wait_graph import Cause, Hang, find

from .errors import MAX_TOLD
from .ledgers import Job, build, common, front
from .read import DumpSet
from .totals import uneven
from .transfers import Transfer, one_sided, waiting_text
from .words import difference_sentence, hang_sentence, rank_views

_COUNTS = 8
_QUEUED = "every rank has enqueued these; what counts here is which one is at the front of each rank's queue"


def judge(found: DumpSet) -> Verdict:
    """The verdict on a job by its flight recorder dumps, by the rules in docs/dumps.md.

    What the whole dumps prove comes first: the end of a damaged one is not known, and would cut short what
    can be compared.
    """
    verdict = _Case(build(found)).verdict()
    if found.damaged and verdict.kind not in (Kind.STUCK, Kind.DIVERGED):
        verdict = _Case(build(found, damaged=True)).verdict()
    return verdict


class _Case:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.remarks = tuple(
            f"{name}: the dumps do not say who belongs to it: taken to be the ranks that recorded it"
            for name in sorted(set(job.assumed))
        )

    def verdict(self) -> Verdict:
        job = self.job
        differences = [d for group in job.groups if (d := difference(group))]
        differing = {id(d.group) for d in differences}
        differences += [
            d
            for g, group in enumerate(job.groups)
            if id(group) not in differing and (d := uneven(job, group, g))
        ]
        cause = find(job.groups, job.ledgers, 0.0, [d.group for d in differences])
        remark = ""
        if cause.root is None and not differences and not any(map(job.damaged, job.ledgers)):
            cause = self._queued()
            remark = _QUEUED if cause.root else ""
        transfer = one_sided(job)
        if transfer and self._behind(cause.root, transfer):
            told = (*cause.consequences, *((self._told(cause.root),) if cause.root else ()))
            group, sentence, views = transfer
            return self._base(Kind.STUCK, sentence, group, views, consequences=told)
        if cause.root:
            return self._stuck(cause.root, cause, differences, remark)
        if differences:
            return self._diverged(differences)
        if transfer:
            group, sentence, views = transfer
            return self._base(Kind.STUCK, sentence, group, views)
        return self._agreed()

    @staticmethod
    def _behind(root: Hang | None, transfer: Transfer) -> bool:
        """Whether a rank that a group waits for waits in this send or receive: then that comes first."""
        group, _, views = transfer
        return root is not None and group.ranks[views[0].rank] in {
            root.group.ranks[rank] for rank in root.absent
        }

    @staticmethod
    def _told(hang: Hang) -> str:
        waiting, absent = ([hang.group.ranks[r] for r in ranks] for ranks in (hang.waiting, hang.absent))
        verb = "wait" if len(waiting) > 1 else "waits"
        return f"{hang.group.name}: {ranks_text(waiting)} {verb} for {ranks_text(absent)}"

    def _base(
        self,
        kind: Kind,
        sentence: str,
        group: JobGroup | None = None,
        views: tuple[RankView, ...] = (),
        **parts: object,
    ) -> Verdict:
        consequences = [*parts.pop("consequences", ()), *self.remarks]  # type: ignore[misc]
        if len(consequences) > MAX_TOLD:
            consequences[MAX_TOLD:] = [f"and {len(consequences) - MAX_TOLD} more"]
        problems = self.job.problems
        if len(problems) > MAX_TOLD:
            more = Problem(None, None, f"and {len(problems) - MAX_TOLD} problems more")
            problems = [*problems[:MAX_TOLD], more]
        return Verdict(
            kind,
            sentence,
            group=group_view(group) if group else None,
            ranks=views,
            waiting=tuple(v.rank for v in views if v.state == "waiting"),
            absent=tuple(v.rank for v in views if v.state == "absent"),
            consequences=tuple(consequences),
            problems=tuple(problems),
            **parts,  # type: ignore[arg-type]
        )

    # -- ranks differ

    def _queued(self) -> Cause:
        """What hangs if each rank's queue is run in order: ranks may have enqueued two groups' collectives in
        different orders. Counts are then what has come to the front of the queue.
        """
        issued = {id(ledger): dict(ledger.issued) for ledger in self.job.ledgers}
        for ledger in self.job.ledgers:
            held = front(self.job, ledger)
            for g in ledger.groups:
                behind = [o.seq - 1 for o in self.job.traces[id(ledger), g].open]
                if held and g != held[0] and behind:
                    ledger.issued[g] = min(behind)
        cause = find(self.job.groups, self.job.ledgers, 0.0)
        if cause.root is None:
            for ledger in self.job.ledgers:
                ledger.issued = issued[id(ledger)]
        return cause

    def _stuck(self, hang: Hang, cause: Cause, differences: list[Difference], remark: str) -> Verdict:
        before = next((d for d in differences if d.group is hang.group), None)
        others = [f"{d.group.name} differs from #{d.seq} on" for d in differences if d is not before]
        views = rank_views(self.job, hang.group, hang_views(hang, self.job.groups, 0.0, 0.0))
        sentence = hang_sentence(self.job, hang.group, hang.seq, views, queued=bool(remark))
        if before and before.seq != hang.seq:
            parted = rank_views(self.job, hang.group, difference_views(before, 0.0))
            told = difference_sentence(self.job, hang.group, parted, before.seq)
            sentence += f"; they differ from #{before.seq} on: {told}"
        consequences = (*cause.consequences, *others, *((remark,) if remark else ()))
        seq = before.seq if before and before.seq is not None else hang.seq
        return self._base(
            Kind.STUCK,
            sentence,
            hang.group,
            views,
            seq=seq,
            odd=before.odd if before else (),
            consequences=consequences,
        )

    def _diverged(self, differences: list[Difference]) -> Verdict:
        first, *others = sorted(differences, key=lambda d: (d.seq is None, d.group.name))
        views = rank_views(self.job, first.group, difference_views(first, 0.0))
        waits = [m.ledger.waiting_at(0.0) for m in first.group.members.values()]
        held = any(
            w and w.g == m.g and w.seq == first.seq
            for w, m in zip(waits, first.group.members.values(), strict=True)
        )
        kind = Kind.STUCK if held else Kind.DIVERGED
        where = f" from #{first.seq} on" if first.seq is not None else ""
        parted = difference_sentence(self.job, first.group, views, first.seq)
        sentence = f"{group_text(group_view(first.group))} differs{where}: {parted}"
        told = tuple(f"{d.group.name} differs too, from #{d.seq} on" for d in others)
        verdict = self._base(
            kind, sentence, first.group, views, seq=first.seq, odd=first.odd, consequences=told
        )
        return replace(verdict, waiting=(), absent=first.absent)

    # -- ranks agree

    def _agreed(self) -> Verdict:
        job = self.job
        held = [ledger for ledger in job.ledgers if front(job, ledger)]
        text = self._held(held) or waiting_text(job)
        if job.problems:
            return self._incomplete(text)
        unequal = [group for group in job.groups if len({m.issued for m in group.members.values()}) > 1]
        if text:
            return self._base(Kind.STALLED, f"all ranks have issued what they wait for: {text}")
        if unequal:
            group = unequal[0]
            counts = {m.issued for m in group.members.values()}
            low = [job.global_rank(group, r) for r, m in group.members.items() if m.issued < max(counts)]
            what = (
                f"{ranks_text(low)} stopped at #{min(counts)}, the others at #{max(counts)}, and nobody waits"
            )
            return self._incomplete(
                f"{group_text(group_view(group))}: {what}: the dumps were made at different moments"
            )
        if not any(group.members for group in job.groups):
            return self._incomplete("no group of several ranks is in these dumps")
        told: Counter[str] = Counter()
        for g, group in enumerate(job.groups):
            first, last = common(job, group, g)
            if last:
                told[f"{group.name} {last}" + (f" (from {first} on)" if first > 1 else "")] += 1
        texts = [f"{text} in {n} groups" if n > 1 else text for text, n in told.items()]
        if len(texts) > _COUNTS:
            texts[_COUNTS:] = [f"and {sum([*told.values()][_COUNTS:])} groups more"]
        counts_text = ", ".join(texts)
        sentence = f"{len(job.ledgers)} dumps: every rank issued the same collectives: {counts_text}"
        return self._base(Kind.IN_STEP, sentence)

    def _held(self, held: Sequence[Ledger]) -> str:
        """Who waits in what, ranks in the same place in one clause."""
        places: dict[str, list[int]] = {}
        for ledger in held:
            wait = ledger.pulse.w if ledger.pulse else None
            if wait and ledger.process:
                at = f", issued at {wait.at}" if wait.at else ""
                name = ledger.groups[wait.g].name
                places.setdefault(f"{operation_text(wait, wait.seq)} of group {name}{at}", []).append(
                    ledger.process.rank
                )
        texts = [
            f"{ranks_text(ranks)} {'wait' if len(ranks) > 1 else 'waits'} in {place}"
            for place, ranks in places.items()
        ]
        return "; ".join(texts[:4]) + (f"; and {len(texts) - 4} more places" if len(texts) > 4 else "")

    def _incomplete(self, why: str) -> Verdict:
        texts = [why] if why else []
        if self.job.problems:
            first: Problem = self.job.problems[0]
            more = f" (and {len(self.job.problems) - 1} more)" if len(self.job.problems) > 1 else ""
            texts.append(f"{first}{more}")
        return self._base(Kind.INCOMPLETE, f"no claim: {'; '.join(texts)}")
