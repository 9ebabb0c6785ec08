"""Events of a fit, for marks over the steps: evaluations, restarts, garbage collections, stragglers."""

from collections.abc import Iterable
from heapq import nlargest
from typing import Any

from perf_callbacks.kernel.records.fit_records import Straggler
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.tables import distinct_stalls
from perf_callbacks.report.units import duration
from perf_callbacks.stragglers.text import NAMES

PAUSES = 300
"""Most garbage collections that are marked: the longest."""

MARKS = 300
"""Most marks of any other kind."""

LANES = ("evaluation", "checkpoint", "restart", "FLOP count", "collection", "straggler", "stall")
"""Kinds of marks, in the order in which they are drawn."""

COUNTS = {"counted", "recounted"}

COLLECTED_BY = {"checklist": "by the checklist", "program": "by a call of gc.collect()", "automatic": "automatic"}
"""Words for a collection, by its collector."""


def marks(fit: FitHistory, within: range | None = None) -> dict[str, Any] | None:
    """Collect the events beside the steps, in lanes; None if there are no events."""
    found = [mark for mark in _all_marks(fit) if within is None or mark[0] in within]
    lanes = [lane for lane in LANES if any(mark[1] == lane for mark in found)]
    if not lanes:
        return None
    numbers = {lane: sum(mark[1] == lane for mark in found) for lane in lanes}
    text = "Events over the steps: " + ", ".join(f"{lane}: {number}" for lane, number in numbers.items()) + "."
    ordered = sorted(([step, lanes.index(lane), said] for step, lane, said in found), key=lambda mark: mark[:2])
    return {"lanes": lanes, "marks": ordered, "text": text}


def _all_marks(fit: FitHistory) -> Iterable[tuple[int, str, str]]:
    first = fit.first
    for attempt, repeated in fit.restarts:
        again = f", {repeated:,} steps repeated" if repeated else ""
        yield attempt.run.step, "restart", f"attempt {attempt.run.attempt} from step {attempt.run.step:,}{again}"
    for kind in ("evaluation", "checkpoint"):
        spans = [span for attempt in first for span in attempt.spans if span.kind == kind]
        for span in nlargest(MARKS, spans, key=lambda span: span.seconds):
            yield span.step, kind, f"{kind} {duration(span.seconds)}"
    counts = [(step, reason) for attempt in first for step, reason in attempt.excluded.items() if reason in COUNTS]
    for step, reason in counts[:MARKS]:
        yield step, "FLOP count", f"FLOPs {reason}"
    pauses = [
        (seconds, attempt.pauses.step[place], attempt.pauses.generation[place], attempt.pauses.by[place], rank)
        for rank, attempt in fit.attempts
        for place, seconds in enumerate(attempt.pauses.seconds)
    ]
    for seconds, step, generation, by, rank in nlargest(PAUSES, pauses):
        said = f"garbage collection {duration(seconds)}, generation {generation}, rank {rank}, {COLLECTED_BY[by]}"
        yield step, "collection", said
    slow = [one for _, attempt in fit.attempts for one in attempt.of(Straggler)]
    for one in nlargest(MARKS, slow, key=lambda one: one.seconds_lost):
        steps = f" in {one.steps:,} steps" if one.steps > 1 else ""
        why = NAMES.get(one.cause, one.cause)
        yield one.step, "straggler", f"rank {one.rank} cost {duration(one.seconds_lost)}{steps}: {why}"
    for stall in distinct_stalls(fit)[:MARKS]:
        yield stall.step, "stall", f"rank {stall.rank} in {stall.stage} for {duration(stall.since_seconds)}"
