"""Line of advice that is shown during training when a new cause limits the run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import sub

from typing_extensions import override

from perf_callbacks.advice import cpu, drift, stall, startup, throttle
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.failures import guard, logs
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.shares import LARGE
from perf_callbacks.kernel.records.summary_parts import GcSummary
from perf_callbacks.report import cards

WINDOW_SECONDS = 60.0
"""Each line is about one window; windows follow each other without gaps."""

QUIET_SECONDS = 600.0

WHOLE_FIT = frozenset({stall.CAUSE, cpu.CAUSE, cpu.THREADS, drift.CAUSE, startup.CAUSE, throttle.CAUSE, "compile"})
"""Causes that are not shown: stalls, which the log reports, and causes that are measured over the whole fit."""

MOST_STEPS = 10_000


def begin(recorder: Recorder, context: FitContext) -> "LiveAdvice | None":
    return LiveAdvice(recorder, context.show) if recorder.run.rank == 0 else None


class LiveAdvice(Observer):
    """Shows a line about the worst cause of the last minute. Each cause is shown once per fit."""

    def __init__(self, recorder: Recorder, show: Callable[[str], object]) -> None:
        self._recorder = recorder
        self._show = show
        self._due = self._step = recorder.step
        self._began = recorder.clock()
        self._before: Summary | None = None
        self._told: set[str] = set()
        self._told_at = -QUIET_SECONDS

    @property
    @override
    def due(self) -> int:
        return self._due

    @override
    def step_ended(self, step: int) -> None:
        now = self._recorder.clock()
        passed = now - self._began
        if passed < WINDOW_SECONDS:
            pace = passed / max(step - self._step, 1)
            self._due = step + (min(MOST_STEPS, int((WINDOW_SECONDS - passed) / pace) + 1) if pace > 0 else MOST_STEPS)
            return
        self._due = NEVER
        with guard(logs(log.warning, "perf_callbacks gives no more advice before the end: %s.")):
            self._look(now)
            self._began, self._step, self._due = now, step, step + 1

    def _look(self, now: float) -> None:
        summary = self._recorder.engine.summary(now=now)
        window = summary if self._before is None else between(self._before, summary)
        self._before = summary
        findings = self._recorder.observers.findings(window)
        worst = next((finding for finding in findings if finding.cause not in WHOLE_FIT), None)
        if worst is None or (worst.share or 0.0) < LARGE or worst.cause in self._told:
            return
        if now - self._told_at >= QUIET_SECONDS:
            self._told.add(worst.cause)
            self._told_at = now
            self._show(cards.live(worst, now - self._began, terminal.columns()))


def between(before: Summary, after: Summary) -> Summary:
    """Subtract the earlier values in fields that rules read. All others are copies from `after`."""
    return replace(
        after,
        steps=after.steps - before.steps,
        included_steps=after.included_steps - before.included_steps,
        included_seconds=after.included_seconds - before.included_seconds,
        stage_seconds=_less(after.stage_seconds, before.stage_seconds),
        other_seconds=_less(after.other_seconds, before.other_seconds),
        wall_seconds=_less(after.wall_seconds, before.wall_seconds),
        span_counts={kind: count - before.span_counts.get(kind, 0) for kind, count in after.span_counts.items()},
        gc=after.gc and before.gc and _later(before.gc, after.gc),
    )


def _later(before: GcSummary, after: GcSummary) -> GcSummary:
    return replace(
        after,
        seconds=after.seconds - before.seconds,
        scheduled_seconds=(after.scheduled_seconds or 0.0) - (before.scheduled_seconds or 0.0),
        scheduled_made=(after.scheduled_made or 0) - (before.scheduled_made or 0),
        scheduled_garbage=(after.scheduled_garbage or 0) - (before.scheduled_garbage or 0),
        collections=tuple(map(sub, after.collections, before.collections)),
    )


def _less(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
