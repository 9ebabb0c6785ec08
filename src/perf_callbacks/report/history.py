"""The history of a job, read from its journals: fits, attempts and ranks. Steps are stored in compact columns."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise, zip_longest
from math import nan
from typing import Any

from perf_callbacks.flops.peaks.peak_rates import TERA
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Row, Run, Steps, Summary
from perf_callbacks.kernel.records.metric_table import KEYS
from perf_callbacks.kernel.records.rank_records import Stall

TIMES = (
    "step_time",
    "data_time",
    "forward_time",
    "backward_time",
    "optimizer_time",
    "communication_time",
    "gc_time",
    "other_time",
    "model_flops",
)
"""Names of the columns that hold the times and the model FLOPs of a step."""

STEP_COLUMNS = (*TIMES, "samples", "tokens")
"""Names of the columns that a history keeps of each step. Values are floats, and NaN means unknown."""

FEW = 256
"""Number of steps in a block of the journal. If an attempt fails, its last block of steps may be missing in the
journal."""

LARGEST = 2**53
"""Limit for step numbers. JavaScript represents all integers below the limit exactly."""

LOST_CONNECTION = re.compile(
    r"(closed|reset) by peer|broken pipe|gloo|nccl|remote process|collective operation timeout|Dist(Network|Store)Err",
    re.IGNORECASE,
)
"""Part of the errors that collectives and torch's store raise because another rank is gone."""

MOST = 1e30
"""A time or size above this limit counts as unknown, so that sums stay finite."""


@dataclass(slots=True)
class Attempt:
    """One attempt of a rank: the rank's records from one start of training to the next start."""

    run: Run
    step: "array[int]" = field(default_factory=lambda: array("q"))
    columns: "dict[str, array[float]]" = field(default_factory=lambda: {name: array("d") for name in STEP_COLUMNS})
    """The values of each step. The keys are the names in `STEP_COLUMNS`. NaN means unknown."""
    excluded: dict[int, str] = field(default_factory=dict)
    """Number and reason of each step that is excluded from means and rates."""
    peak_tflops: float | None = None
    """Peak TFLOPS of one device, from the last logged row that has a peak."""
    entries: list[Entry] = field(default_factory=list)
    """All records except `run`, steps and rows, in the order of the journal."""
    seconds: float = 0.0
    """Seconds from the start of the attempt to its latest record or interim summary."""
    written_unix: float | None = None
    """Unix time of the last write to the journal before the next attempt began. None means unknown."""
    interim: Summary | None = None
    """Last interim summary, if the attempt has no final summary because it was killed, hangs, or is still running."""
    interim_seconds: float = -1.0
    """Seconds from the start of the attempt to its interim summary. Negative: there is none."""

    @property
    def summary(self) -> Summary | None:
        """Final summary, or else the interim summary. None means there is neither."""
        found: Summary | None = self.last(Summary) or self.interim
        return found

    @property
    def unseen_steps(self) -> int:
        """Number of steps that the summary counts but the journal lacks."""
        return 0 if self.summary is None else max(0, self.summary.steps - len(self.step))

    @property
    def peak_flops_per_second(self) -> float | None:
        """Peak of one device, from the summary or else from the last logged row. None means unknown."""
        flops = None if self.summary is None else self.summary.flops
        known = (flops.peak_flops_per_second if flops is not None else None, (self.peak_tflops or 0.0) * TERA)
        return next((peak for peak in known if peak is not None and peak > 0), None)

    @property
    def full(self) -> str:
        """Say which steps the journal has. Empty if it has all steps, except perhaps the last ones before a kill."""
        if (
            self.summary is None
            or self.unseen_steps <= FEW
            or self.summary.step <= (last := max(self.step, default=0)) + FEW
        ):
            return ""
        has = f"{len(self.step):,} of {self.summary.steps:,} steps, up to step {last:,}"
        return f"rank {self.run.rank}'s journal was full (max_journal_mb): it has {has}"

    def add(self, entry: Entry) -> None:
        record = entry.record
        self.seconds = max(self.seconds, entry.t)
        if isinstance(record, Steps):
            self._add_steps(record)
        elif isinstance(record, Row):
            self.peak_tflops = record.metrics.get(KEYS["row"]["peak_tflops"], self.peak_tflops)
        elif not isinstance(record, Run):
            self.entries.append(entry)

    def _add_steps(self, record: Steps) -> None:
        """Add a block of steps. Drop a step if an earlier step has the same number or a larger number."""
        last = self.step[-1] if self.step else -1
        new = [*_ascending(record.step, last)]
        self.step.extend(compress(record.step, new))
        for name, column in self.columns.items():
            values = getattr(record, name) or (None,) * len(new)
            kept = compress(values, new)
            column.extend([nan if value is None or not possible(value) else value for value in kept])
        if any(record.excluded):
            reasons = zip(record.step, record.excluded, new, strict=True)
            self.excluded.update((step, reason) for step, reason, kept in reasons if kept and reason)

    def of(self, kind: type) -> list[Any]:
        return [entry.record for entry in self.entries if type(entry.record) is kind]

    def last(self, kind: type) -> Any:
        """Return the last record of a type, or None if there is no such record."""
        return next((entry.record for entry in reversed(self.entries) if type(entry.record) is kind), None)


@dataclass(slots=True)
class FitHistory:
    """The attempts of a fit, by rank. The attempts of each rank are in the order in which they ran."""

    run_id: str
    ranks: dict[int, list[Attempt]] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        """The `run` record of the last attempt of the lowest rank."""
        return self.first[-1].run

    @property
    def first(self) -> list[Attempt]:
        return self.ranks[min(self.ranks)]

    @property
    def restarts(self) -> Iterator[tuple[Attempt, int]]:
        """Each attempt after the first, with the number of steps that the attempt repeated."""
        for before, attempt in pairwise(self.first):
            last = before.step[-1] if before.step else attempt.run.step
            yield attempt, max(0, last - attempt.run.step)

    @property
    def attempts(self) -> Iterator[tuple[int, Attempt]]:
        """All attempts, each with its rank."""
        return ((rank, attempt) for rank, attempts in sorted(self.ranks.items()) for attempt in attempts)

    @property
    def world_size(self) -> int:
        """Number of ranks in the job, but at least the number of ranks that have a journal."""
        return max(self.run.world_size, len(self.ranks))

    @property
    def missing(self) -> list[int]:
        """Ranks without a journal, but at most a hundred ranks."""
        return [rank for rank in range(min(self.run.world_size, 100_000)) if rank not in self.ranks][:100]

    @property
    def last(self) -> list[Attempt]:
        """Last attempt of each rank, sorted by rank. Ranks that took no part in the job's last attempt are left out."""
        attempts = [self.ranks[rank][-1] for rank in sorted(self.ranks)]
        latest = max([attempt.run for attempt in attempts], key=lambda run: run.started_unix)
        return [one for one in attempts if (one.run.world_size, one.run.step) == (latest.world_size, latest.step)]

    @property
    def summary(self) -> Summary | None:
        """Final summary of the lowest rank's last attempt, or else its interim summary. None means there is neither."""
        return self.first[-1].summary

    @property
    def failure(self) -> str | None:
        """Reason why measuring stopped early, of the rank that failed first. None means that no rank gives a reason."""
        ends = [(one, one.last(Summary)) for one in self.last]
        failures = [(one.run, one.seconds, end.failure) for one, end in ends if end is not None and end.failure]
        return first_failure(failures, self.run.rank)

    @property
    def hang(self) -> Summary | None:
        """Interim summary of a hanging rank, or of a rank that was killed while it hung. None means that no rank hangs.

        If several ranks hang, a rank that logged a message about the stall is preferred.
        """
        found = [  # an interim summary is up to ten seconds old: later steps show that the rank went on
            one.interim
            for one in self.last
            if one.interim is not None and (not one.step or one.step[-1] <= one.interim.step)
        ]
        hung = [one for one in found if one.stalls is not None and one.stalls.under_way]
        return min(hung, key=lambda one: one.stalls is None or one.stalls.where is None, default=None)

    @property
    def last_stalls(self) -> list[Stall]:
        """Stalls of the ranks since their last step, unless a newer summary shows that a stall is over."""
        return [
            entry.record
            for one in self.last
            for entry in one.entries
            if isinstance(entry.record, Stall)
            and entry.record.rank == one.run.rank
            and entry.record.step >= max([one.run.step, *one.step[-1:]])
            and one.last(Summary) is None
            and entry.t > one.interim_seconds
        ]

    def kept(self, rank: int) -> list[tuple[Attempt, int]]:
        """Return pairs: an attempt of the rank, and the number of steps that no later attempt repeated."""
        limit = LARGEST
        found = []
        for attempt in reversed(self.ranks[rank]):
            found.append((attempt, bisect_right(attempt.step, limit)))
            limit = min(limit, attempt.run.step)
        return found[::-1]


def first_failure(failures: Iterable[tuple[Run, float, str]], lead: int) -> str | None:
    """Return the reason that came first, with its rank unless this is `lead`. None means that there is no failure.

    Clocks are compared only within a host. Of the first failures of several hosts, an error about a lost connection
    counts last: it names the victim and not the culprit.

    Args:
        failures: `run` record of each rank that failed, seconds from the record to the failure, and the reason.
        lead: Rank that needs no name.
    """
    hosts: dict[str | int, tuple[float, Run, str]] = {}
    for run, seconds, reason in failures:
        failure, host = (run.started_unix + seconds, run, reason), run.host or run.rank
        hosts[host] = min(failure, hosts.get(host, failure), key=lambda one: (one[0], one[1].rank))
    first = min(hosts.values(), key=lambda one: (LOST_CONNECTION.search(one[2]) is not None, one[1].rank), default=None)
    if first is None:
        return None
    return first[2] if first[1].rank == lead else f"rank {first[1].rank}: {first[2]}"


def possible(value: float) -> bool:
    """Return True if the value is a time or size that a run can have."""
    return 0 <= value <= MOST


def finite(value: float | None) -> float | None:
    """Return the value, or None if no run can have this value."""
    return value if value is not None and possible(value) else None


def gather(
    journals: Iterable[Iterable[Entry]], interim: Iterable[Callable[[Run], Entry | None]] = ()
) -> list[FitHistory]:
    """Return the fits in the journals, sorted by start time. Records before the first `run` record are dropped.

    Args:
        journals: The entries of each journal.
        interim: For each journal, a function that returns the interim summary of an attempt.
    """
    fits: dict[str, FitHistory] = {}
    for journal, so_far in zip_longest(journals, interim):
        current: Attempt | None = None
        for entry in journal:
            if isinstance(entry.record, Run):
                before, current = current, _attempt(fits, entry.record)
                if before is not None and before is not current:
                    before.written_unix = entry.record.last_sign_unix
            if current is not None:
                current.add(entry)
        if current is not None and so_far is not None and current.last(Summary) is None:
            beside = so_far(current.run)
            if beside is not None and isinstance(beside.record, Summary):
                current.interim, current.interim_seconds = beside.record, beside.t
                current.seconds = max(current.seconds, beside.t)
    return sorted(fits.values(), key=lambda fit: fit.first[0].run.started_unix)


def _attempt(fits: dict[str, FitHistory], run: Run) -> Attempt:
    """Return the attempt that a `run` record begins. Equal `run` records belong to the same attempt.

    If a journal is deleted during a run, the new journal file begins with the same `run` record.
    """
    fit = fits.setdefault(run.run_id, FitHistory(run.run_id))
    attempts = fit.ranks.setdefault(run.rank, [])
    for known in attempts:
        if known.run == run:
            return known
    attempts.append(Attempt(run))
    return attempts[-1]


def _ascending(steps: Sequence[int], last: int) -> Iterator[bool]:
    for step in steps:
        yield last < step < LARGEST
        last = max(last, step) if step < LARGEST else last
