"""Events of a fit for the report's charts, such as evaluations, checkpoints, restarts and stalls."""

from collections.abc import Iterable
from heapq import nlargest
from typing import Any, NamedTuple

from perf_callbacks.kernel.records.fit_records import Gc, Span
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.report import profile_text
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import clean
from perf_callbacks.report.series import MOST_DRAWN
from perf_callbacks.report.tables import distinct_stalls, stalled_seconds
from perf_callbacks.report.units import duration
from perf_callbacks.stragglers.text import NAMES, rank_names

LANES = ("evaluation", "checkpoint", "restart", "FLOP count", "profile", "collection", "straggler", "stall")
"""Kinds of events, in the order in which the report draws them."""


class JournalEvent(NamedTuple):
    """An event of a fit, with the step at which the event happened."""

    step: int
    lane: str
    text: str
    rank: int
    seconds: float


def events(fit: FitHistory, within: range | None = None) -> list[JournalEvent]:
    chosen = [event for event in _all(fit) if within is None or event.step in within]
    lanes = [
        nlargest(MOST_DRAWN, [event for event in chosen if event.lane == lane], key=lambda event: event.seconds)
        for lane in LANES
    ]
    return sorted([event for lane in lanes for event in lane], key=lambda event: event.step)


def marks(fit: FitHistory, within: range | None = None) -> dict[str, Any] | None:
    chosen = events(fit, within)
    numbers = {lane: sum(event.lane == lane for event in chosen) for lane in LANES}
    lanes = [lane for lane, number in numbers.items() if number]
    if not lanes:
        return None
    text = "Events over the steps: " + ", ".join(f"{lane}: {numbers[lane]}" for lane in lanes) + "."
    return {
        "lanes": lanes,
        "marks": [[event.step, lanes.index(event.lane), event.text] for event in chosen],
        "text": text,
    }


def _all(fit: FitHistory) -> Iterable[JournalEvent]:
    """Restarts, evaluations, checkpoints and FLOP counts come from the lowest rank."""
    lowest = min(fit.ranks)
    for attempt, repeated in fit.restarts:
        again = f", {repeated:,} steps repeated" if repeated else ""
        text = f"attempt {attempt.run.attempt} from step {attempt.run.step:,}{again}"
        yield JournalEvent(attempt.run.step, "restart", text, lowest, 0.0)
    for attempt in fit.first:
        for span in attempt.records(Span):
            yield of_span(span, lowest)
        for step, reason in attempt.excluded.items():
            if reason in {"counted", "recounted"}:
                yield JournalEvent(step, "FLOP count", f"FLOPs {reason}", lowest, 0.0)
    for rank, attempt in fit.attempts:
        yield from [of_collection(pause, rank) for pause in attempt.records(Gc)]
        yield from map(of_straggler, attempt.records(Straggler))
        for profile in attempt.records(Profile):
            if profile.first_step is not None:
                trace = "" if profile.trace is None else f", trace {clean(profile.trace)}"
                text = f"profile of {profile_text.title(rank, profile)}{trace}"
                yield JournalEvent(profile.first_step, "profile", text, rank, profile.span_seconds)
    for stall in distinct_stalls(fit):
        seconds = stalled_seconds(fit, stall)
        text = f"rank {stall.rank} in {stall.stage} for {duration(seconds)}"
        yield JournalEvent(stall.step, "stall", text, stall.rank, seconds)


def of_straggler(slow: Straggler) -> JournalEvent:
    steps = f" in {slow.steps:,} steps" if slow.steps > 1 else ""
    who = rank_names(slow.ranks or (slow.rank,))
    text = f"{who} cost {duration(slow.seconds_lost)}{steps}: {NAMES.get(slow.cause, slow.cause)}"
    return JournalEvent(slow.step, "straggler", text, slow.rank, slow.seconds_lost)


def of_collection(pause: Gc, rank: int) -> JournalEvent:
    automatic = "automatic" if pause.automatic else "by a call of gc.collect()"
    cause = automatic if pause.ours is None else "by the checklist"
    text = f"garbage collection {duration(pause.seconds)}, generation {pause.generation}, rank {rank}"
    return JournalEvent(pause.step, "collection", f"{text}, {cause}", rank, pause.seconds)


def of_span(span: Span, rank: int) -> JournalEvent:
    return JournalEvent(span.step, span.kind, f"{span.kind} {duration(span.seconds)}", rank, span.seconds)
