"""State, hang and summary of a run, computed from the first and last records of its journals.

Nothing here reads a clock or a file: the time and the records are arguments.
"""

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
"""A run counts as running if its last sign of life is at most this many seconds old. Each rank rewrites its interim
summary every ten seconds."""

COPIED_SECONDS = 120.0
"""A journal counts as a copy if its file is more than this many seconds newer than the journal's last record. A copied
journal's last sign of life is the time of its last record, because the file's time is the time of copying."""

State = Literal["ended", "failed", "running", "hangs", "silent"]
"""States of a run. "ended" means that there is a final summary. "failed" means that the final summary gives a reason
why measuring stopped early. "silent" means that there is neither a final summary nor a sign of life."""


@dataclass(frozen=True)
class RecordedRun:
    """The last attempt of a run."""

    ranks: tuple[FitEnds, ...]
    """First and last records of each rank's journal, sorted by rank. There is at least one rank."""
    now: float
    """Unix time at which the journals were read."""

    @property
    def lead(self) -> FitEnds:
        """First and last records of the lowest rank's journal."""
        return self.ranks[0]

    @property
    def directory(self) -> Path:
        """Output directory of the run."""
        folder = self.lead.journal.parent
        return folder.parent if folder.name == FOLDER else folder

    @property
    def missing(self) -> list[int]:
        """Ranks without a journal: at most the first hundred of them."""
        known = {ends.run.rank for ends in self.ranks}
        return [rank for rank in range(min(self.lead.run.world_size, 100_000)) if rank not in known][:100]

    @cached_property
    def state(self) -> State:
        """State of the run, as far as its files show it."""
        unfinished = [ends for ends in self.ranks if ends.final is None]
        if any(self.lives(ends) for ends in unfinished):
            return "running" if self.hang is None else "hangs"
        if unfinished and self.lead.final is None:
            return "silent"
        return "ended" if self.failure is None else "failed"

    @property
    def failure(self) -> str | None:
        """Reason why measuring stopped early, of the rank that failed first. None means that no rank gives a reason.

        A rank whose process was gone before is the reason why another rank lost its connection.
        """
        failures = [(one.run, one.seconds, one.final.failure) for one in self.ranks if one.final and one.final.failure]
        first = first_failure(failures, self.lead.run.rank)
        failed = min([run.started_unix + seconds for run, seconds, _ in failures], default=0.0)
        gone = [
            (one.run.rank, one.signs.gone)
            for one in self.ranks[1:]
            if one.signs and one.signs.gone and sign(one) <= failed
        ]
        if first is None or not gone or LOST_CONNECTION.search(first) is None:
            return first
        return "rank {}: process {} is gone, killed or crashed".format(*gone[0])

    @cached_property
    def hang(self) -> FitEnds | None:
        """Records of a rank that hangs, or that hung at its last sign of life. None means that no rank hangs.

        If several ranks hang, a rank that logged a message about the stall is preferred.
        """
        hung = [ends for ends in self.ranks if hangs(ends)]
        return min(hung, key=lambda ends: where(ends) is None, default=None)

    @cached_property
    def hanging(self) -> list[tuple[Stall, int | None]]:
        """The stalls of the ranks that cause a hang, each with the process id of the rank.

        The id is None if it is unknown, or if the process is on another machine.
        The rank that logs a stall writes a record for itself, and a record for each other rank that causes the stall.
        If no stack of a causing rank is known, the list holds only the rank of `hang`.
        """
        ends = self.hang
        found = None if ends is None else own_stall(ends)
        if ends is None or found is None:
            return []
        noticed, own = found
        named = [one.record.rank for one in ends.latest if isinstance(one.record, Stall) and one.t >= noticed]
        causes = []
        for other in self.ranks:
            stalled = own_stall(other)
            if other is not ends and other.run.rank in named and stalled is not None and stalled[1].stack:
                causes.append((other, stalled[1]))
        return [(stall, None if rank.signs is None else rank.signs.pid) for rank, stall in causes or [(ends, own)]]

    @cached_property
    def summary(self) -> Summary | None:
        """Final or interim summary of the lowest rank.

        In a hang, the interim summary of the hanging rank is preferred.
        """
        hung = None if self.hang is None else self.hang.so_far
        return hung or self.lead.final or self.lead.so_far

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step from the summary, or else from the last recorded steps. None means unknown."""
        if self.summary is not None and self.summary.step_time is not None:
            return self.summary.step_time
        return self.last_seconds

    @property
    def last_seconds(self) -> float | None:
        """Seconds per step of the last recorded steps. None means unknown."""
        steps = self.lead.last(Steps)
        known = [] if steps is None else [seconds for seconds in steps.step_time if seconds is not None]
        return sum(known) / len(known) if known else None

    @property
    def lower_bound(self) -> bool:
        """True if MFU is a lower bound, because a step has more FLOPs than were counted."""
        return self.summary is not None and self.summary.flops is not None and self.summary.flops.lower_bound

    @property
    def last_sign(self) -> float:
        """Unix time of the last sign of life of any rank."""
        return max(sign(ends) for ends in self.ranks)

    def lives(self, ends: FitEnds) -> bool:
        """Return True if a rank gave a sign of life lately, and its process isn't known to be gone.

        A sign of life also counts if its time is slightly in the future, because the rank's clock may be ahead of this
        machine's clock.
        """
        signs = ends.signs
        return signs is not None and signs.gone is None and abs(self.now - sign(ends)) <= FRESH_SECONDS


def sign(ends: FitEnds) -> float:
    recorded = ends.run.started_unix + ends.seconds
    if ends.signs is None:
        return recorded
    written = ends.signs.written_unix
    return recorded if ends.signs.pid is None and written - recorded > COPIED_SECONDS else written


def where(ends: FitEnds) -> str | None:
    """Return the sentences that a rank logged about its current stall, or None if there are no such sentences."""
    summary = ends.so_far
    return summary.stalls.where if summary is not None and summary.stalls is not None else None


def gather(fits: Iterable[FitEnds], now: float) -> list[RecordedRun]:
    """Return the runs in the journals, the newest run first. Each run holds only its last attempt."""
    runs: dict[str, dict[int, FitEnds]] = {}
    for ends in fits:
        ranks = runs.setdefault(ends.run.run_id, {})
        known = ranks.get(ends.run.rank)
        if known is None or _order(known) <= _order(ends):
            ranks[ends.run.rank] = ends
    found = [RecordedRun(tuple(_of_last_attempt(ranks)), now) for ranks in runs.values()]
    return sorted(found, key=lambda run: run.lead.run.started_unix, reverse=True)


def merge(runs: Iterable[RecordedRun]) -> list[RecordedRun]:
    """Merge runs whose ranks write to several directories. Return all runs, the newest run first.

    If two runs with the same id both have a journal of the same rank, one run is a copy of the other. A run and its
    copy are not merged.
    """
    found: dict[str, list[RecordedRun]] = {}
    for run in runs:
        same = found.setdefault(run.lead.run.run_id, [])
        for place, known in enumerate(same):
            if not {ends.run.rank for ends in known.ranks} & {ends.run.rank for ends in run.ranks}:
                same[place] = gather([*known.ranks, *run.ranks], run.now)[0]
                break
        else:
            same.append(run)
    merged = [run for same in found.values() for run in same]
    return sorted(merged, key=lambda run: run.lead.run.started_unix, reverse=True)


def _of_last_attempt(ranks: dict[int, FitEnds]) -> Sequence[FitEnds]:
    """Return the ranks that take part in the job's last attempt, sorted by rank."""
    latest = max(ranks.values(), key=_order).run
    attempt = (latest.world_size, latest.step)
    return [ranks[rank] for rank in sorted(ranks) if (ranks[rank].run.world_size, ranks[rank].run.step) == attempt]


def _order(ends: FitEnds) -> tuple[float, int]:
    return ends.run.started_unix, ends.run.attempt


def hangs(ends: FitEnds) -> bool:
    """Return True if a rank was in a stall at its last sign of life."""
    if ends.final is not None:
        return False
    summary, found = ends.so_far, own_stall(ends)
    if ends.interim is None or summary is None or summary.step < ends.last_step:
        return found is not None
    if summary.stalls is not None and summary.stalls.under_way:
        return True
    return found is not None and found[0] > ends.interim.t  # noticed after the summary was made


def own_stall(ends: FitEnds) -> tuple[float, Stall] | None:
    """Return the stall that began after a rank's last step, and the time of the stall's journal record.

    None means that no stall began after the rank's last step.
    """
    steps = ends.last(Steps)
    last = max([ends.run.step, *(steps.step[-1:] if steps is not None else ())])
    for entry in reversed(ends.latest):
        if isinstance(entry.record, Stall) and entry.record.rank == ends.run.rank:
            return (entry.t, entry.record) if entry.record.step >= last else None
    return None


def stalled_seconds(ends: FitEnds) -> float | None:
    """Return the seconds without a step in the stall that began after a rank's last step. None: no such stall."""
    found = own_stall(ends)
    return None if found is None else found[1].since_seconds + max(0.0, ends.seconds - found[0])
