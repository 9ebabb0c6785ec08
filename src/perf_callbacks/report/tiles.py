"""The numbers at the top of a report, each with its inputs."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from perf_callbacks.kernel.records.fit_records import Summary, Window
from perf_callbacks.report.explanation import explanation
from perf_callbacks.report.history import FitHistory, possible
from perf_callbacks.report.layout import clean
from perf_callbacks.report.series import StepSeries, left_out
from perf_callbacks.report.units import duration, long_duration, percent, rate, speed
from perf_callbacks.report.work_rate import WorkRate

REASONS = {
    "counted": "FLOP count",
    "recounted": "another FLOP count",
    "first": "first step of an attempt",
    "profiled": "torch.profiler",
}

MOST_REASONS = 8


def tiles(fit: FitHistory, drawn: StepSeries, work: WorkRate) -> list[dict[str, Any]]:
    rows = [_step_time(fit, drawn), *_work(work), *_rates(fit), *_gc(fit.summary), _run_time(fit)]
    return [dict(zip(("key", "name", "value", "note", "how"), row, strict=True)) for row in rows]


Tile = tuple[str, str, str, str, dict[str, Any]]
"""Key in the registry, name, value, note and explanation."""


def _step_time(fit: FitHistory, drawn: StepSeries) -> Tile:
    value = duration(drawn.mean_seconds)
    number = f"{drawn.steps:,} steps" + (f" of {len(fit.ranks):,} ranks" if len(fit.ranks) > 1 else "")
    first, last = drawn.ends
    values = [("steps", f"{number}, between step {first:,} and {last:,}"), excluded(fit, drawn)]
    equation = f"{value} = {duration(drawn.seconds)} / {drawn.steps:,} steps" if drawn.steps else ""
    how = explanation("step_time", values if drawn.steps else (), equation=equation)
    return "step_time", "step time", value, f"mean of {number}", how


def excluded(fit: FitHistory, drawn: StepSeries) -> tuple[str, str]:
    reasons: Counter[str] = left_out(fit, drawn.axis.within)
    named = [f"{clean(REASONS.get(name, name))} {count:,}" for name, count in reasons.most_common(MOST_REASONS)]
    return "excluded steps", f"{sum(reasons.values()):,}: {', '.join(named)}" if named else "none"


def _work(work: WorkRate) -> Iterator[Tile]:
    if work.per_second is None:
        return
    if work.mfu is not None:
        note = f"of the {'measured peak' if work.summary.peak_measured else 'peak'}, {work.peak_value}"
        note += "; a lower bound: some work is uncounted" if work.at_least else ""
        how = explanation("mfu", work.values(), equation=work.equation, uncounted=work.uncounted)
        yield "mfu", "MFU", f"{work.at_least}{percent(work.mfu)}", note, how
    number, unit = speed(work.per_second).split()
    plain = [value for value in work.values() if "peak" not in value[0]]
    equation = f"{work.at_least}{number} {unit} = {work.work_and_time}"
    how = explanation("tflops", plain, equation=equation, uncounted=work.uncounted)
    yield "tflops", unit, f"{work.at_least}{number}", "model FLOPs per second and device", how


def _rates(fit: FitHistory) -> Iterator[Tile]:
    """Of the whole job, or of a single rank if there is no `window` record."""
    windows: list[Window] = [window for attempt in fit.first for window in attempt.records(Window)]
    for name in ("tokens", "samples"):
        rates = [(getattr(window, name), window.seconds, window) for window in windows]
        rates = [row for row in rates if row[0] and possible(row[0]) and row[1] > 0 and possible(row[1])]
        if rates:
            amount, seconds = sum(row[0] for row in rates), sum(row[1] for row in rates)
            steps = sum(row[2].steps for row in rates)
            values = [
                ("windows", f"{len(rates):,} of {len(windows):,}, with {steps:,} steps of all ranks"),
                ("their time", f"{duration(seconds)}: in each window, that of the slowest rank"),
            ]
            note = "all ranks"
        elif fit.summary is not None and fit.summary.included_seconds > 0:
            amount, seconds = getattr(fit.summary, f"included_{name}"), fit.summary.included_seconds
            values = [("steps", f"{fit.summary.included_steps:,} of rank {min(fit.ranks)}, in its last attempt")]
            note = "one rank" if fit.world_size > 1 else ""
        else:
            continue
        if amount:
            value = rate(amount / seconds)
            equation = f"{value} {name}/s = {amount:,} {name} / {duration(seconds)}"
            key = f"{name}_per_second"
            yield key, f"{name}/s", value, note, explanation(key, values, equation=equation)


def _gc(summary: Summary | None) -> Iterator[Tile]:
    if summary is None or summary.gc is None:
        return
    gc = summary.gc
    attempt = f", in attempt {summary.attempt}" if summary.attempt > 1 else ""
    note = f"{sum(gc.collections):,} collections, longest {duration(gc.longest)}{attempt}"
    wall = sum(summary.wall_seconds.values())
    first = f"{duration(gc.startup_seconds)}, not in the sum" if gc.startup_seconds else ""
    values = [
        ("collections", "young/middle/full " + "/".join(f"{number:,}" for number in gc.collections)),
        ("by the checklist's schedule", duration(gc.scheduled_seconds) if gc.scheduled_seconds else ""),
        ("first full collection", first),
        ("share of the wall time", percent(gc.seconds / wall) if wall > 0 else ""),
    ]
    yield "gc", "garbage collection", duration(gc.seconds), note, explanation("gc", values)


def _run_time(fit: FitHistory) -> Tile:
    wall = sum(attempt.seconds for attempt in fit.first)
    done = sum(count for _, count in fit.kept(min(fit.ranks)))
    attempts = f" in {len(fit.first)} attempts" if len(fit.first) > 1 else ""
    repeated = sum(count for _, count in fit.restarts)
    attempts += f", {repeated:,} of them repeated after restarts" if repeated else ""
    shown = fit.first[:MOST_REASONS]
    values = [(f"attempt {attempt.run.attempt}", long_duration(attempt.seconds)) for attempt in shown]
    further = len(fit.first) - len(shown)
    values += [("further attempts", f"{further:,}")] if further else []
    how = explanation("run_time", values)
    return "run_time", "run time", long_duration(wall), f"{done:,} steps done{attempts}", how
