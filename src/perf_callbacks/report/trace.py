"""A fit as trace events for chrome://tracing and ui.perfetto.dev. Each rank is a process, and each stage is a slice.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from statistics import median
from typing import Any

from perf_callbacks.kernel.records.fit_records import Span
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.report import profile_text
from perf_callbacks.report.events import events
from perf_callbacks.report.history import Attempt, FitHistory
from perf_callbacks.report.series import STAGES, medians

STEPS, SPANS = 1, 2
"""Threads of a rank in the trace. `SPANS` shows evaluations, checkpoints and profiles."""

SPAN_KINDS = {"evaluation", "checkpoint", "profile"}

COMPARED = 1000
"""Ranks are aligned by a sample of fewer than twice as many steps."""

LATEST = 1e9
"""Seconds. A hostile journal may hold much larger numbers."""


@dataclass(slots=True)
class Placed:
    """An attempt on the time axis of the trace, in seconds."""

    attempt: Attempt
    began: float
    ends: "array[float]"

    def end_of(self, step: int) -> float:
        """Or of the nearest earlier step."""
        place = bisect_left(self.attempt.step, step + 1) - 1
        return self.ends[place] if place >= 0 else self.began


def trace(fit: FitHistory, within: range | None = None) -> Iterator[str]:
    """Piece by piece, because memory should not hold all events of a long fit."""
    head = {"run": fit.run_id, "device": fit.run.device, "aligned": "at step ends; stages of a step are in fixed order"}
    yield f'{{"displayTimeUnit":"ms","otherData":{_json(head)},"traceEvents":['
    comma = "\n"
    for event in _events(fit, within):
        yield comma + event
        comma = ",\n"
    yield "\n]}\n"


def _events(fit: FitHistory, within: range | None) -> Iterator[str]:
    lowest = min(fit.ranks)
    reference = _placed(fit, lowest)
    for rank in sorted(fit.ranks):
        yield _meta("process_name", rank, 0, {"name": f"rank {rank}"})
        yield _meta("process_sort_index", rank, 0, {"sort_index": rank})
        yield _meta("thread_name", rank, STEPS, {"name": "steps"})
        yield _meta("thread_name", rank, SPANS, {"name": "evaluations, checkpoints and profiles"})
        placed = reference if rank == lowest else _placed(fit, rank)
        for attempt in placed:
            _align(attempt, reference)
            yield from _steps(rank, attempt, within)
            yield from _spans(rank, attempt, within)
            yield from _profiles(rank, attempt, within)
    yield from _beside(fit, reference, within)


def _placed(fit: FitHistory, rank: int) -> list[Placed]:
    """An attempt begins at its wall-clock start time, but not before the end of the previous attempt."""
    attempts: list[Placed] = []
    usual = medians(fit, rank).get("step_time", 0.0)
    first = fit.ranks[rank][0].run.started_unix
    over = 0.0
    for attempt in fit.ranks[rank]:
        began = max(over, min(attempt.run.started_unix - first, LATEST))
        ends = _ends(attempt, began, usual)
        over = max([began, *ends[-1:]])
        attempts.append(Placed(attempt, began, ends))
    return attempts


def _ends(attempt: Attempt, now: float, usual: float) -> "array[float]":
    """Add up the times of steps, evaluations and checkpoints. An unknown step takes `usual` seconds."""
    ends = array("d")
    spans = sorted(attempt.records(Span), key=lambda span: span.step)
    place = 0
    for step, seconds in zip(attempt.step, attempt.columns["step_time"], strict=True):
        while place < len(spans) and spans[place].step < step:
            now += max(0.0, spans[place].seconds)
            place += 1
        now = min(now + (usual if isnan(seconds) else seconds), LATEST)
        ends.append(now)
    return ends


def _align(placed: Placed, reference: list[Placed]) -> None:
    """The clocks of two ranks may differ, but all ranks end a step together."""
    other = next((other for other in reference if other.attempt.run.attempt == placed.attempt.run.attempt), placed)
    if other is placed:
        return
    apart = []
    for place in range(0, len(placed.ends), max(1, len(placed.ends) // COMPARED)):
        twin = bisect_left(other.attempt.step, placed.attempt.step[place])
        if twin < len(other.ends) and other.attempt.step[twin] == placed.attempt.step[place]:
            apart.append(other.ends[twin] - placed.ends[place])
    if apart:
        late = median(apart)
        placed.began += late
        placed.ends = array("d", [end + late for end in placed.ends])


def _steps(rank: int, placed: Placed, within: range | None) -> Iterator[str]:
    """The journal has only one time per stage and step, so the stages of a step are drawn in a fixed order."""
    attempt, columns = placed.attempt, placed.attempt.columns
    for place, step in enumerate(attempt.step):
        seconds = columns["step_time"][place]
        if isnan(seconds) or (within is not None and step not in within):
            continue
        now, end = placed.ends[place] - seconds, placed.ends[place]
        reason = attempt.excluded.get(step)
        yield _slice("step", (rank, STEPS), now, end, {"step": step} | ({"no row": reason} if reason else {}))
        for name in STAGES:
            took = columns[name][place]
            if took > 0:
                yield _slice(name.removesuffix("_time"), (rank, STEPS), min(now, end), min(now + took, end))
                now += took


def _spans(rank: int, placed: Placed, within: range | None) -> Iterator[str]:
    for span in placed.attempt.records(Span):
        if within is None or span.step in within:
            start = placed.began + max(0.0, span.start)
            yield _slice(span.kind, (rank, SPANS), start, start + max(0.0, span.seconds), {"after step": span.step})


def _profiles(rank: int, placed: Placed, within: range | None) -> Iterator[str]:
    for profile in placed.attempt.records(Profile):
        first, steps = profile.first_step, profile.steps
        if first is None or not steps:
            continue
        last = first + steps - 1
        if within is None or first in within or last in within:
            what, kept = profile_text.sentences(profile), profile.trace or "not kept"
            details = {"steps": f"{first} to {last}", "trace": kept, "what": what}
            yield _slice("profile", (rank, SPANS), placed.end_of(first - 1), placed.end_of(last), details)


def _beside(fit: FitHistory, reference: list[Placed], within: range | None) -> Iterator[str]:
    """Events that are not slices, on the lowest rank if their rank has no journal."""
    for event in events(fit, within):
        if event.lane in SPAN_KINDS:
            continue
        rank = event.rank if event.rank in fit.ranks else min(fit.ranks)
        # of several attempts that ran the step, the most recent attempt counts
        attempt = next(
            (placed for placed in reversed(reference) if placed.attempt.run.step <= event.step), reference[0]
        )
        place = f'"pid":{rank},"tid":{STEPS},"ts":{_micro(attempt.end_of(event.step))}'
        arguments = {"step": event.step, "what": event.text}
        yield f'{{"name":{_json(event.lane)},"ph":"i","s":"p",{place},"args":{_json(arguments)}}}'


def _meta(name: str, rank: int, thread: int, arguments: dict[str, Any]) -> str:
    return f'{{"name":"{name}","ph":"M","pid":{rank},"tid":{thread},"args":{_json(arguments)}}}'


def _slice(name: str, where: tuple[int, int], begin: float, end: float, arguments: dict[str, Any] | None = None) -> str:
    """Round both ends in the same way, so that adjacent slices still touch."""
    start, over = _micro(begin), _micro(end)
    extra = "" if arguments is None else f',"args":{_json(arguments)}'
    place = f'"pid":{where[0]},"tid":{where[1]},"ts":{start},"dur":{over - start}'
    return f'{{"name":{_json(name)},"ph":"X",{place}{extra}}}'


def _micro(seconds: float) -> int:
    return round(max(-LATEST, min(seconds, LATEST)) * 1e6)


_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
