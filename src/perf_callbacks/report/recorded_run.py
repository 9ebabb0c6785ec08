"""State, hang and summary of a run from the first and last records of its journals. Nothing reads clock or file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from perf_callbacks.kernel.records.fit_records import Steps, Summary
from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.records.journal_file import FOLDER
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.report.history import LOST_CONNECTION, first_failure

FRESH_SECONDS = 30.0
"""Oldest last sign of life of a running run. Each rank rewrites its interim summary every ten seconds."""

COPIED_SECONDS = 120.0
"""A journal whose file is newer than its last record by more is a copy, and the time of this record counts."""

State = Literal["ended", "failed", "running", "hangs", "silent"]
"""The final summary of a "failed" run says why measuring stopped early. "silent": neither it nor a sign of life."""


@dataclass(frozen=True)
class RecordedRun:
    """The last attempt of a run."""

    ranks: tuple[FitEnds, ...]
    """At least one, sorted by rank."""
    now: float

    @property
    def lead(self) -> FitEnds:
        return self.ranks[0]

    @property
    def directory(self) -> Path:
        folder = self.lead.journal.parent
        return folder.parent if folder.name == FOLDER else folder

    @property
    def missing(self) -> list[int]:
        """Ranks without a journal: at most the first hundred of them."""
        ranks = {ends.run.rank for ends in self.ranks}
        return [rank for rank in range(min(self.lead.run.world_size, 100_000)) if rank not in ranks][:100]

    @cached_property
    def state(self) -> State:
        unfinished = [ends for ends in self.ranks if ends.final is None]
        if any(self.lives(ends) for ends in unfinished):
            return "running" if self.hang is None else "hangs"
        if unfinished and self.lead.final is None:
            return "silent"
        return "ended" if self.failure is None else "failed"

    @property
    def failure(self) -> str | None:
        """Of the rank that failed first.

        A rank whose process was gone before is the reason why another rank lost its connection.
        """
        failures = [
            (ends.run, ends.seconds, ends.final.failure) for ends in self.ranks if ends.final and ends.final.failure
        ]
        first = first_failure(failures, self.lead.run.rank)
        failed = min([run.started_unix + seconds for run, seconds, _ in failures], default=0.0)
        gone = [
            (ends.run.rank, ends.signs.gone)
            for ends in self.ranks[1:]
            if ends.signs and ends.signs.gone and sign(ends) <= failed
        ]
        if first is None or not gone or LOST_CONNECTION.search(first) is None:
            return first
        return "rank {}: process {} is gone, killed or crashed".format(*gone[0])

    @cached_property
    def hang(self) -> FitEnds | None:
        """A rank that hangs, or that hung at its last sign of life; rather one that logged the stall."""
        hung = [ends for ends in self.ranks if hangs(ends)]
        return min(hung, key=lambda ends: where(ends) is None, default=None)

    @cached_property
    def hanging(self) -> list[tuple[Stall, int | None]]:
        """Stalls of the ranks that cause a hang, with process ids; None: unknown, or on another machine.

        The rank that logs a stall writes a record for itself and for each other rank that causes it. If no stack of a
        causing rank is known, the list holds only the rank of `hang`.
        """
        ends = self.hang
        noticed_stall = None if ends is None else own_stall(ends)
        if ends is None or noticed_stall is None:
            return []
        noticed, own = noticed_stall
        named = [entry.record.rank for entry in ends.latest if isinstance(entry.record, Stall) and entry.t >= noticed]
        causes = []
        for other in self.ranks:
            stalled = own_stall(other)
            if other is not ends and other.run.rank in named and stalled is not None and stalled[1].stack:
                causes.append((other, stalled[1]))
        return [(stall, None if rank.signs is None else rank.signs.pid) for rank, stall in causes or [(ends, own)]]

    @cached_property
    def summary(self) -> Summary | None:
        """Of the lowest rank, perhaps interim; in a hang, rather the interim one of the hanging rank."""
        hung = None if self.hang is None else self.hang.so_far
        return hung or self.lead.final or self.lead.so_far

    @property
    def step_seconds(self) -> float | None:
        """From the summary, or else from the last recorded steps."""
        if self.summary is not None and self.summary.step_time is not None:
            return self.summary.step_time
        return self.last_seconds

    @property
    def last_seconds(self) -> float | None:
        """Of the last recorded steps."""
        steps = self.lead.last(Steps)
        times = [] if steps is None else [seconds for seconds in steps.step_time if seconds is not None]
        return sum(times) / len(times) if times else None

    @property
    def lower_bound(self) -> bool:
        """A step has more FLOPs than were counted."""
        return self.summary is not None and self.summary.flops is not None and self.summary.flops.lower_bound

    @property
    def last_sign(self) -> float:
        """Unix time, of any rank."""
        return max(sign(ends) for ends in self.ranks)

    def lives(self, ends: FitEnds) -> bool:
        """A sign of life slightly in the future counts too, because the rank's clock may be ahead."""
        signs = ends.signs
        return signs is not None and signs.gone is None and abs(self.now - sign(ends)) <= FRESH_SECONDS


def sign(ends: FitEnds) -> float:
    recorded = ends.run.started_unix + ends.seconds
    if ends.signs is None:
        return recorded
    written = ends.signs.written_unix
    return recorded if ends.signs.pid is None and written - recorded > COPIED_SECONDS else written


def where(ends: FitEnds) -> str | None:
    summary = ends.so_far
    return summary.stalls.where if summary is not None and summary.stalls is not None else None


def gather(fits: Iterable[FitEnds], now: float) -> list[RecordedRun]:
    """The newest first, only with the last attempt of each."""
    runs: dict[str, dict[int, FitEnds]] = {}
    for ends in fits:
        ranks = runs.setdefault(ends.run.run_id, {})
        other = ranks.get(ends.run.rank)
        if other is None or _order(other) <= _order(ends):
            ranks[ends.run.rank] = ends
    newest = [RecordedRun(tuple(_of_last_attempt(ranks)), now) for ranks in runs.values()]
    return sorted(newest, key=lambda run: run.lead.run.started_unix, reverse=True)


def merge(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """Merge runs whose ranks write to several directories. Return all runs, the newest run first.

    Two runs with the same id that both have a journal of the same rank are a run and its copy, and not merged.
    """
    by_id: dict[str, list[RecordedRun]] = {}
    for run in runs:
        same = by_id.setdefault(run.lead.run.run_id, [])
        for place, other in enumerate(same):
            if not {ends.run.rank for ends in other.ranks} & {ends.run.rank for ends in run.ranks}:
                same[place] = gather([*other.ranks, *run.ranks], run.now)[0]
                break
        else:
            same.append(run)
    merged = [run for same in by_id.values() for run in same]
    return sorted(merged, key=lambda run: run.lead.run.started_unix, reverse=True)


def _of_last_attempt(ranks: dict[int, FitEnds]) -> Sequence[FitEnds]:
    latest = max(ranks.values(), key=_order).run
    attempt = (latest.world_size, latest.step)
    return [ranks[rank] for rank in sorted(ranks) if (ranks[rank].run.world_size, ranks[rank].run.step) == attempt]


def _order(ends: FitEnds) -> tuple[float, int]:
    return ends.run.started_unix, ends.run.attempt


def hangs(ends: FitEnds) -> bool:
    if ends.final is not None:
        return False
    summary, stall = ends.so_far, own_stall(ends)
    if ends.interim is None or summary is None or summary.step < ends.last_step:
        return stall is not None
    if summary.stalls is not None and summary.stalls.under_way:
        return True
    return stall is not None and stall[0] > ends.interim.t  # noticed after the summary was made


def own_stall(ends: FitEnds) -> tuple[float, Stall] | None:
    """The stall that began after a rank's last step, with the time of its journal record."""
    steps = ends.last(Steps)
    last = max([ends.run.step, *(steps.step[-1:] if steps is not None else ())])
    for entry in reversed(ends.latest):
        if isinstance(entry.record, Stall) and entry.record.rank == ends.run.rank:
            return (entry.t, entry.record) if entry.record.step >= last else None
    return None


def stalled_seconds(ends: FitEnds) -> float | None:
    """Without a step, in the stall that began after a rank's last step."""
    stall = own_stall(ends)
    return None if stall is None else stall[1].since_seconds + max(0.0, ends.seconds - stall[0])
