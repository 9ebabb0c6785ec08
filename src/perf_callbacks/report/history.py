"""The history of a job, read from its journals: fits, attempts and ranks. Steps are stored in compact columns."""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise, zip_longest
from math import nan
from typing import Any

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Row, Run, Steps, Summary
from perf_callbacks.kernel.records.metric_table import KEYS
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.units import TERA

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

STEP_COLUMNS = (*TIMES, "samples", "tokens")
"""Floats; NaN means unknown."""

FEW = 256
"""Steps in a block of the journal. A failed attempt may lack its last block."""

LARGEST = 2**53
"""JavaScript represents all integers below exactly."""

LOST_CONNECTION = re.compile(
    r"(closed|reset) by peer|broken pipe|gloo|nccl|remote process|collective operation timeout|Dist(Network|Store)Err",
    re.IGNORECASE,
)
"""Of errors that collectives and torch's store raise because another rank is gone."""

MOST = 1e30
"""A larger time or size counts as unknown, so that sums stay finite."""


@dataclass(slots=True)
class Attempt:
    """A rank's records from one start of training to the next."""

    run: Run
    step: "array[int]" = field(default_factory=lambda: array("q"))
    columns: "dict[str, array[float]]" = field(default_factory=lambda: {name: array("d") for name in STEP_COLUMNS})
    """By the names in `STEP_COLUMNS`; NaN means unknown."""
    excluded: dict[int, str] = field(default_factory=dict)
    peak_tflops: float | None = None
    """Of one device, from the last logged row that has a peak."""
    entries: list[Entry] = field(default_factory=list)
    """All records except `run`, steps and rows, in the order of the journal."""
    seconds: float = 0.0
    """From the start of the attempt to its latest record or interim summary."""
    written_unix: float | None = None
    """Last write to the journal before the next attempt began."""
    interim: Summary | None = None
    """Of an attempt without a final summary: it was killed, hangs, or is still running."""
    interim_seconds: float = -1.0
    """Of the interim summary, from the start of the attempt. Negative: there is none."""

    @property
    def summary(self) -> Summary | None:
        summary: Summary | None = self.last(Summary) or self.interim
        return summary

    @property
    def unseen_steps(self) -> int:
        """That the summary counts but the journal lacks."""
        return 0 if self.summary is None else max(0, self.summary.steps - len(self.step))

    @property
    def peak_flops_per_second(self) -> float | None:
        """From the summary, or else from the last logged row."""
        flops = None if self.summary is None else self.summary.flops
        peaks = (flops.peak_flops_per_second if flops is not None else None, (self.peak_tflops or 0.0) * TERA)
        return next((peak for peak in peaks if peak is not None and peak > 0), None)

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
        """Drop a step if an earlier step has the same number or a larger number."""
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

    def records(self, kind: type) -> list[Any]:
        return [entry.record for entry in self.entries if type(entry.record) is kind]

    def last(self, kind: type) -> Any:
        return next((entry.record for entry in reversed(self.entries) if type(entry.record) is kind), None)


@dataclass(slots=True)
class FitHistory:
    """Attempts of a fit by rank, in the order in which they ran."""

    run_id: str
    ranks: dict[int, list[Attempt]] = field(default_factory=dict)

    @property
    def run(self) -> Run:
        return self.first[-1].run

    @property
    def first(self) -> list[Attempt]:
        return self.ranks[min(self.ranks)]

    @property
    def restarts(self) -> Iterator[tuple[Attempt, int]]:
        """Each attempt after the first, with the number of steps that it repeated."""
        for before, attempt in pairwise(self.first):
            last = before.step[-1] if before.step else attempt.run.step
            yield attempt, max(0, last - attempt.run.step)

    @property
    def attempts(self) -> Iterator[tuple[int, Attempt]]:
        return ((rank, attempt) for rank, attempts in sorted(self.ranks.items()) for attempt in attempts)

    @property
    def world_size(self) -> int:
        """At least the number of ranks that have a journal."""
        return max(self.run.world_size, len(self.ranks))

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(min(self.run.world_size, 100_000)) if rank not in self.ranks][:100]

    @property
    def last(self) -> list[Attempt]:
        """By rank, without ranks that took no part in the job's last attempt."""
        attempts = [self.ranks[rank][-1] for rank in sorted(self.ranks)]
        latest = max([attempt.run for attempt in attempts], key=lambda run: run.started_unix)
        return [
            attempt
            for attempt in attempts
            if (attempt.run.world_size, attempt.run.step) == (latest.world_size, latest.step)
        ]

    @property
    def summary(self) -> Summary | None:
        """Of the lowest rank's last attempt, perhaps interim."""
        return self.first[-1].summary

    @property
    def failure(self) -> str | None:
        ends = [(attempt, attempt.last(Summary)) for attempt in self.last]
        failures = [
            (attempt.run, attempt.seconds, end.failure) for attempt, end in ends if end is not None and end.failure
        ]
        return first_failure(failures, self.run.rank)

    @property
    def hang(self) -> Summary | None:
        """Interim summary of a rank that hangs or was killed in a hang; rather of one that logged the stall."""
        summaries = [  # an interim summary is up to ten seconds old: later steps show that the rank went on
            attempt.interim
            for attempt in self.last
            if attempt.interim is not None and (not attempt.step or attempt.step[-1] <= attempt.interim.step)
        ]
        hung = [summary for summary in summaries if summary.stalls is not None and summary.stalls.under_way]
        return min(hung, key=lambda summary: summary.stalls is None or summary.stalls.where is None, default=None)

    @property
    def last_stalls(self) -> list[Stall]:
        """Since the last step of each rank, unless a newer summary shows that a stall is over."""
        return [
            entry.record
            for attempt in self.last
            for entry in attempt.entries
            if isinstance(entry.record, Stall)
            and entry.record.rank == attempt.run.rank
            and entry.record.step >= max([attempt.run.step, *attempt.step[-1:]])
            and attempt.last(Summary) is None
            and entry.t > attempt.interim_seconds
        ]

    def kept(self, rank: int) -> list[tuple[Attempt, int]]:
        """With the number of steps that no later attempt repeated."""
        limit = LARGEST
        pairs = []
        for attempt in reversed(self.ranks[rank]):
            pairs.append((attempt, bisect_right(attempt.step, limit)))
            limit = min(limit, attempt.run.step)
        return pairs[::-1]


def first_failure(failures: Iterable[tuple[Run, float, str]], lead: int) -> str | None:
    """Return the reason that came first, with its rank unless this is `lead`.

    Clocks are compared only within a host. Of the first failures of several hosts, an error about a lost connection
    counts last: it names the victim and not the culprit. Seconds count from the record `run`.
    """
    hosts: dict[str | int, tuple[float, Run, str]] = {}
    for run, seconds, reason in failures:
        failure, host = (run.started_unix + seconds, run, reason), run.host or run.rank
        hosts[host] = min(failure, hosts.get(host, failure), key=lambda entry: (entry[0], entry[1].rank))
    first = min(
        hosts.values(), key=lambda entry: (LOST_CONNECTION.search(entry[2]) is not None, entry[1].rank), default=None
    )
    if first is None:
        return None
    return first[2] if first[1].rank == lead else f"rank {first[1].rank}: {first[2]}"


def possible(value: float) -> bool:
    return 0 <= value <= MOST


def finite(value: float | None) -> float | None:
    """None if no run can have this value."""
    return value if value is not None and possible(value) else None


def gather(
    journals: Iterable[Iterable[Entry]], interim: Iterable[Callable[[Run], Entry | None]] = ()
) -> list[FitHistory]:
    """Return the fits by start time. Records before the first `run` record are dropped.

    For each journal, `interim` has a function that returns the interim summary of an attempt.
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
    """Equal `run` records are one attempt: a journal that is deleted during a run begins again with the same one."""
    fit = fits.setdefault(run.run_id, FitHistory(run.run_id))
    attempts = fit.ranks.setdefault(run.rank, [])
    for attempt in attempts:
        if attempt.run == run:
            return attempt
    attempts.append(Attempt(run))
    return attempts[-1]


def _ascending(steps: Sequence[int], last: int) -> Iterator[bool]:
    for step in steps:
        yield last < step < LARGEST
        last = max(last, step) if step < LARGEST else last
