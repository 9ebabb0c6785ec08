"""Kinds of time in a job, and the split of an attempt's time into these kinds."""

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from statistics import median
from typing import TypeVar

from perf_callbacks.goodput.attempt_order import last_step
from perf_callbacks.kernel.records.fit_records import Span, Summary
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.report.history import Attempt
from perf_callbacks.report.recorded_run import COPIED_SECONDS

T = TypeVar("T")

PRODUCTIVE, DATA, COMMUNICATION, STRAGGLERS = "productive", "data", "communication", "stragglers"

STALLS, STARTUP, RESTORE, FIRST_STEP = "stalls", "startup", "restore", "first step"
EVALUATION, CHECKPOINT, ROLLED_BACK, DOWNTIME = "evaluation", "checkpoint", "rolled back", "downtime"
OTHER = "other"

STEP_KINDS = (PRODUCTIVE, DATA, COMMUNICATION, STRAGGLERS)
_BETWEEN = (STALLS, STARTUP, RESTORE, FIRST_STEP, EVALUATION, CHECKPOINT)
KINDS = (*STEP_KINDS, ROLLED_BACK, *_BETWEEN, DOWNTIME, OTHER)
"""In the order of the tables."""

_EXCESS = {"first": FIRST_STEP, "restart": FIRST_STEP, "counted": OTHER, "recounted": OTHER, "profiled": OTHER}
"""Where the step's time beyond the median step goes, by the reason for excluding the step."""


def lasted(attempt: Attempt) -> float:
    """Seconds to the last sign of life: of a hung attempt, the last write to its journal."""
    recorded = max(0.0, attempt.seconds)
    if attempt.written_unix is None or attempt.last(Summary) is not None:
        return recorded
    written = attempt.written_unix - attempt.run.started_unix
    copied = written - recorded > COPIED_SECONDS and hanging_since(attempt) is None
    return recorded if copied or not isfinite(written) else max(recorded, written)


def hanging_since(attempt: Attempt) -> float | None:
    done, since = last_step(attempt), None
    end = attempt.last(Summary)
    if end is not None and end.failure is None:
        return None
    for entry in attempt.entries:
        record = entry.record
        if isinstance(record, Stall) and record.rank == attempt.run.rank and record.step >= done:
            since = max(0.0, entry.t - record.since_seconds)
        elif isinstance(record, Span) and record.step >= done:  # a span is written when it ends
            since = None
    return since


def by_kind(attempt: Attempt, kept: int, seconds: float) -> dict[str, float]:
    """Return parts that add up to `seconds`. Kinds that were not measured are missing.

    The first `kept` steps survive.
    """
    unknown = _unknown(attempt)
    parts = {kind: 0.0 for kind in KINDS if kind not in unknown}
    _add_steps(parts, attempt, kept)
    _move_stragglers(parts, attempt, kept)
    for span in records(attempt, Span):
        parts[span.kind if span.kind in {EVALUATION, CHECKPOINT} else OTHER] += max(0.0, span.seconds)
    measured = sum(parts.values())
    if measured > seconds:  # the clock of a device may exceed the clock of the host by a little
        return {kind: value * (seconds / measured) for kind, value in parts.items()}
    since = hanging_since(attempt)
    rest = seconds - measured
    hung = 0.0 if since is None else min(rest, max(0.0, seconds - since))
    parts[STALLS] += hung
    parts[OTHER] += rest - hung
    return parts


def _unknown(attempt: Attempt) -> set[str]:
    kinds = set()
    for kind, name in ((DATA, "data_time"), (COMMUNICATION, "communication_time")):
        if all(map(isnan, attempt.columns[name])):
            kinds.add(kind)
    if attempt.run.world_size == 1 or attempt.run.config.get("stragglers") == "off":
        kinds.add(STRAGGLERS)
    if attempt.run.restore_seconds is None:
        kinds.add(RESTORE)
    return kinds


def _add_steps(parts: dict[str, float], attempt: Attempt, kept: int) -> None:
    """The time of a special step, such as the first one, beyond the median has a kind of its own."""
    columns: Mapping[str, Sequence[float]] = attempt.columns
    times, data, waits = columns["step_time"], columns["data_time"], columns["communication_time"]
    excluded = attempt.excluded
    ordinary = [
        time
        for step, time in zip(attempt.step, times, strict=True)
        if excluded.get(step) not in _EXCESS and not isnan(time)
    ]
    usual = median(ordinary) if ordinary else None
    stalled = {stall.step + 1 for stall in records(attempt, Stall) if stall.rank == attempt.run.rank}
    for place, (step, time) in enumerate(zip(attempt.step, times, strict=True)):
        if isnan(time) or time <= 0:
            continue
        kind = STALLS if step in stalled else _EXCESS.get(excluded.get(step, ""))
        excess = 0.0 if kind is None or usual is None else max(0.0, time - usual)
        if kind is not None:
            parts[kind] += excess
        if place >= kept:
            parts[ROLLED_BACK] += time - excess
            continue
        share = (time - excess) / time
        left = time - excess
        for stage, value in ((DATA, data[place]), (COMMUNICATION, waits[place])):
            if not isnan(value):
                taken = min(left, value * share)
                parts[stage] += taken
                left -= taken
        parts[PRODUCTIVE] += left


def _move_stragglers(parts: dict[str, float], attempt: Attempt, kept: int) -> None:
    """Take the cost of slow ranks from `communication`, and what exceeds it from productive time."""
    if STRAGGLERS not in parts:
        return
    last = attempt.step[kept - 1] if kept else attempt.run.step
    lost = sum(
        [max(0.0, straggler.seconds_lost) for straggler in records(attempt, Straggler) if straggler.step <= last]
    )
    for kind in (COMMUNICATION, PRODUCTIVE):
        moved = min(lost, parts.get(kind, 0.0))
        if moved > 0:
            parts[kind] -= moved
            parts[STRAGGLERS] += moved
            lost -= moved


def records(attempt: Attempt, kind: type[T]) -> list[T]:
    """Drop duplicates, which a copied journal may have."""
    by_time: dict[float, list[T]] = {}
    for entry in attempt.entries:
        if isinstance(entry.record, kind) and entry.record not in by_time.setdefault(entry.t, []):
            by_time[entry.t].append(entry.record)
    return [record for same_time in by_time.values() for record in same_time]
