"""Charts of the report: bars that show parts of a whole, the load and memory of the machine, and the heat map."""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from math import isnan
from statistics import median
from typing import Any

from perf_callbacks.goodput import job_time, text
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.memory.use import known
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import clean
from perf_callbacks.report.series import OWN, STAGES, Axis, included, kept, rounded, short
from perf_callbacks.report.units import duration, percent, size, speed
from perf_callbacks.report.work_rate import WorkRate

MOST_ATTEMPTS = 24
"""Largest number of attempts that get a bar. If a run has more attempts, only the most recent attempts get a bar."""

FEWEST = 3
"""Smallest number of points for which a line is drawn."""

POINTS = 1000
"""A long line has at least this many points, but fewer than twice as many. Of 5,000 records, every fifth record is
drawn."""

CELLS = 120
"""Largest number of columns of the heat map."""

CELL_STEPS = 100
"""The median of a cell is computed from a sample of the cell's steps. The sample has at least this many steps, or all
steps if there are fewer."""

RANKS = 64
"""Largest number of rows of the heat map."""

SHARES = {"CPU load": "cpu_load", "GPU utilization": "gpu_utilization"}
SIZES = {"host memory": "resident_gb", "GPU memory": "gpu_memory_gb"}
"""Maps the name of a line to the field of the `use` records that the line shows."""


def bar(title: str, parts: Sequence[tuple[str, float, str]], whole: float) -> dict[str, Any]:
    """Return the bar that shows parts of a whole. Each part has a name, a size and a text."""
    said = ", ".join(f"{name} {value}" for name, _, value in parts)
    found = [{"name": name, "share": rounded(part / whole), "value": value} for name, part, value in parts]
    return {"title": title, "parts": found, "text": f"{title}: {said}."}


def wall_parts(summary: Summary | None) -> list[tuple[str, float, str]]:
    """Return the parts of the wall time: name, seconds and text."""
    parts = {} if summary is None else summary.wall_seconds
    return [
        (clean(name).replace("_", " ").replace("flop", "FLOP"), seconds, duration(seconds))
        for name, seconds in parts.items()
        if seconds > 0
    ]


def account(fit: FitHistory) -> dict[str, Any] | None:
    """Return a bar of the wall time, or None if no time is known."""
    summary, parts = fit.summary, wall_parts(fit.summary)
    if summary is None or not parts:
        return None
    wall = sum(seconds for _, seconds, _ in parts)  # not of all values: a damaged journal may hold negative values
    attempt = f" of attempt {summary.attempt}" if summary.attempt > 1 else ""
    return bar(f"{duration(wall)} in all, on rank {min(fit.ranks)}{attempt}", parts, wall)


def peak(work: WorkRate) -> dict[str, Any] | None:
    """Return a bar of the peak: MFU, recomputation and the unused rest. None means that MFU is unknown."""
    count, mfu = work.count, work.mfu
    if mfu is None or work.peak is None or count is None or count.model_flops <= 0:
        return None
    extra = max(0.0, mfu * (count.hardware_flops / count.model_flops - 1))
    parts = [("model FLOPs (MFU)", mfu, percent(mfu))]
    if extra:
        parts.append(("recomputation", extra, percent(extra)))
    parts.append(("unused", max(0.0, 1 - mfu - extra), f"{max(0.0, 1 - mfu - extra):.1%}"))
    return bar(f"HFU {percent(mfu + extra)} of {speed(work.peak)}", parts, max(1.0, mfu + extra))


def attempts(fit: FitHistory) -> dict[str, Any] | None:
    """Return a bar for all attempts, and a bar for each attempt. None: there is one attempt, or no time passed."""
    if len(fit.first) == 1:
        return None
    job = job_time.of(fit.first)
    numbered = [*enumerate(job.attempts, 1)][-MOST_ATTEMPTS:]
    longest = max(one.all_seconds for _, one in numbered)
    if longest <= 0:
        return None
    shown = "" if len(numbered) == len(job.attempts) else f" Below: the last {MOST_ATTEMPTS}."
    title = f"{text.sentence(job)} ETTR {percent(job.ettr)} over {len(job.attempts):,} attempts.{shown}"
    whole = job.all_seconds
    made = []
    for place, one in numbered:
        lost = f", {one.rolled_back_steps:,} rolled back" if one.rolled_back_steps else ""
        end = text.end(one, last=place == len(job.attempts))
        about = f"from step {one.run.step:,}, {one.steps:,} steps{lost}, {end}"
        made.append({"name": f"Attempt {place}", "bar": bar(about, _parts(one.seconds), longest)})
    return {"all": bar(title.removesuffix("."), _parts(job.seconds), whole), "attempts": made}


def _parts(seconds: Mapping[str, float]) -> list[tuple[str, float, str]]:
    return [(kind, value, text.hours(value)) for kind, value in seconds.items() if value > 0]


def memory(found: Memory | None) -> dict[str, Any] | None:
    """Return a bar of the memory of a step, by part. None means that no part is known."""
    sizes = {} if found is None else known(found)
    peak = sizes.pop("peak", None)
    if not sizes:
        return None
    title = "each part at its largest" if peak is None else f"{size(peak)} at its peak; each part at its largest"
    return bar(title, [(name, gb, size(gb)) for name, gb in sizes.items()], sum(sizes.values()))


def use(fit: FitHistory) -> list[dict[str, Any]]:
    """Return charts of the machine's load and memory over the steps, from records of the lowest rank."""
    uses = sorted([found for attempt in fit.first for found in attempt.of(Use)], key=lambda found: found.step)
    shown = uses[:: max(1, len(uses) // POINTS)]
    charts = [_lines("Load", "share", shown, SHARES), _lines("Memory", "GB", shown, SIZES)]
    return [chart for chart in charts if chart is not None]


def _lines(title: str, unit: str, uses: list[Use], fields: dict[str, str]) -> dict[str, Any] | None:
    lines = {name: [getattr(found, field) for found in uses] for name, field in fields.items()}
    drawn = {name: values for name, values in lines.items() if any(value is not None for value in values)}
    if not drawn or len(uses) < FEWEST:
        return None
    ends = ", ".join(f"{name} up to {max(v for v in values if v is not None):.3g}" for name, values in drawn.items())
    return {
        "title": title,
        "unit": unit,
        "x": [found.step for found in uses],
        "names": [*drawn],
        "values": [short(values) for values in drawn.values()],
        "text": f"{title} over the steps: {ends}{' (1 is 100 %)' if unit == 'share' else ' GB'}.",
    }


def heat_map(fit: FitHistory, within: range | None = None) -> dict[str, Any] | None:
    """Return the heat map of a fit. None means that the fit has a single rank, or no steps.

    Rows are ranks, and columns are steps. For each stage, a cell shows how much longer the rank takes than the median
    of all ranks.
    """
    axis = Axis([fit], CELLS, within)
    excess = _excess(fit, axis, within) if len(fit.ranks) > 1 else {}
    own = [name for name in OWN if name in excess] or [*excess]
    if not own:
        return None
    peaks = {
        rank: max((value, name) for name in own for value in [0.0, *excess[name][rank]] if value is not None)
        for rank in sorted(fit.ranks)
    }
    slowest = nlargest(RANKS, peaks, key=lambda rank: peaks[rank][0])
    seconds, name = peaks[slowest[0]]
    stage, ranks = name.removesuffix("_time"), sorted(slowest)
    return {
        "first": axis.first,
        "width": axis.width,
        "last": axis.last,
        "ranks": ranks,
        "left_out": len(fit.ranks) - len(ranks),
        "names": [name.removesuffix("_time") for name in excess],
        "stage": stage,
        "excess": [[short(rows[rank], 3) for rank in ranks] for rows in excess.values()],
        "text": f"Heat map of {len(ranks)} ranks over the steps. "
        f"The largest excess is {duration(seconds)} per step: rank {slowest[0]}, {stage}.",
    }


def _excess(fit: FitHistory, axis: Axis, within: range | None) -> dict[str, dict[int, list[float | None]]]:
    """Return how many seconds each rank is slower than the median of all ranks, by stage and bucket of steps."""
    names = ("step_time", *STAGES)
    usual: dict[str, dict[int, list[float | None]]]
    usual = {name: {rank: [None] * axis.count for rank in fit.ranks} for name in names}
    for rank, attempt, lower, upper in kept(fit, within):
        for bucket, start, end in axis.cut(attempt, lower, upper):
            places = included(attempt, start, end)
            places = places[:: max(1, len(places) // CELL_STEPS)]
            for name in names:
                column = attempt.columns[name]
                if places and not isnan(column[places[0]]):
                    usual[name][rank][bucket] = median([column[place] for place in places])
    excess = {}
    for name, times in usual.items():
        columns = [[one for one in column if one is not None] for column in zip(*times.values(), strict=True)]
        middle = [median(column) if column else None for column in columns]
        if any(value is not None for value in middle):
            excess[name] = {
                rank: [
                    None if value is None or other is None else value - other
                    for value, other in zip(row, middle, strict=True)
                ]
                for rank, row in times.items()
            }
    return excess
