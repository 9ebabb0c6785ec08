"""Charts of the report: bars that show parts of a whole, and lines for the load and memory of the machine."""

from collections.abc import Mapping, Sequence
from typing import Any

from perf_callbacks.flops.work import beside_model
from perf_callbacks.goodput import job_time, text
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.memory.use import parts_in_gb
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import clean
from perf_callbacks.report.series import rounded, short
from perf_callbacks.report.units import duration, percent, size, speed
from perf_callbacks.report.work_rate import WorkRate

MOST_ATTEMPTS = 24

FEWEST = 3

POINTS = 1000
"""A long line has at least so many points, and fewer than twice as many."""

SHARES = {"CPU load": "cpu_load", "GPU utilization": "gpu_utilization"}
SIZES = {"host memory": "resident_gb", "GPU memory": "gpu_memory_gb"}
"""Field of the `use` records that a line shows."""


def bar(title: str, parts: Sequence[tuple[str, float, str]], whole: float) -> dict[str, Any]:
    texts = ", ".join(f"{name} {value}" for name, _, value in parts)
    shown = [{"name": name, "share": rounded(part / whole), "value": value} for name, part, value in parts]
    return {"title": title, "parts": shown, "text": f"{title}: {texts}."}


def wall_parts(summary: Summary | None) -> list[tuple[str, float, str]]:
    parts = {} if summary is None else summary.wall_seconds
    return [
        (clean(name).replace("_", " ").replace("flop", "FLOP"), seconds, duration(seconds))
        for name, seconds in parts.items()
        if seconds > 0
    ]


def account(fit: FitHistory) -> dict[str, Any] | None:
    summary, parts = fit.summary, wall_parts(fit.summary)
    if summary is None or not parts:
        return None
    wall = sum(seconds for _, seconds, _ in parts)  # not of all values: a damaged journal may hold negative values
    attempt = f" of attempt {summary.attempt}" if summary.attempt > 1 else ""
    return bar(f"{duration(wall)} in all, on rank {min(fit.ranks)}{attempt}", parts, wall)


def peak(work: WorkRate) -> dict[str, Any] | None:
    """MFU, recomputation and the unused rest; None: MFU is unknown."""
    count, mfu = work.count, work.mfu
    if mfu is None or work.peak is None or count is None or count.model_flops <= 0:
        return None
    extra = max(0.0, mfu * (count.hardware_flops / count.model_flops - 1))
    parts = [("model FLOPs (MFU)", mfu, percent(mfu))]
    if extra:
        parts.append((beside_model(count.by_phase) or "recomputation", extra, percent(extra)))
    parts.append(("unused", max(0.0, 1 - mfu - extra), f"{max(0.0, 1 - mfu - extra):.1%}"))
    return bar(f"HFU {percent(mfu + extra)} of {speed(work.peak)}", parts, max(1.0, mfu + extra))


def attempts(fit: FitHistory) -> dict[str, Any] | None:
    """A bar for all attempts, and one for each; None: there is one attempt, or no time passed."""
    if len(fit.first) == 1:
        return None
    job = job_time.from_attempts(fit.first)
    numbered = [*enumerate(job.attempts, 1)][-MOST_ATTEMPTS:]
    longest = max(attempt.all_seconds for _, attempt in numbered)
    if longest <= 0:
        return None
    shown = "" if len(numbered) == len(job.attempts) else f" Below: the last {MOST_ATTEMPTS}."
    title = f"{text.sentence(job)} ETTR {percent(job.ettr)} over {len(job.attempts):,} attempts.{shown}"
    whole = job.all_seconds
    made = []
    for place, attempt in numbered:
        last = place == len(job.attempts)
        lost, end = text.rolled_back(attempt, last=last), text.end(attempt, last=last)
        lost = f", {lost} rolled back" if lost else ""
        about = f"from step {attempt.run.step:,}, {attempt.steps:,} steps{lost}, {end}"
        made.append({"name": f"Attempt {place}", "bar": bar(about, _parts(attempt.seconds), longest)})
    return {"all": bar(title.removesuffix("."), _parts(job.seconds), whole), "attempts": made}


def _parts(seconds: Mapping[str, float]) -> list[tuple[str, float, str]]:
    return [(kind, value, text.hours(value)) for kind, value in seconds.items() if value > 0]


def memory(memory: Memory | None) -> dict[str, Any] | None:
    """By part of a step; None: no part is known."""
    sizes = {} if memory is None else parts_in_gb(memory)
    peak = sizes.pop("peak", None)
    if not sizes:
        return None
    title = "each part at its largest" if peak is None else f"{size(peak)} at its peak; each part at its largest"
    return bar(title, [(name, gb, size(gb)) for name, gb in sizes.items()], sum(sizes.values()))


def use(fit: FitHistory) -> list[dict[str, Any]]:
    uses = sorted([use for attempt in fit.first for use in attempt.records(Use)], key=lambda use: use.step)
    shown = uses[:: max(1, len(uses) // POINTS)]
    charts = [_lines("Load", "share", shown, SHARES), _lines("Memory", "GB", shown, SIZES)]
    return [chart for chart in charts if chart is not None]


def _lines(title: str, unit: str, uses: list[Use], fields: dict[str, str]) -> dict[str, Any] | None:
    lines = {name: [getattr(use, field) for use in uses] for name, field in fields.items()}
    drawn = {name: values for name, values in lines.items() if any(value is not None for value in values)}
    if not drawn or len(uses) < FEWEST:
        return None
    ends = ", ".join(f"{name} up to {max(v for v in values if v is not None):.3g}" for name, values in drawn.items())
    return {
        "title": title,
        "unit": unit,
        "x": [use.step for use in uses],
        "names": [*drawn],
        "values": [short(values) for values in drawn.values()],
        "text": f"{title} over the steps: {ends}{' (1 is 100 %)' if unit == 'share' else ' GB'}.",
    }
