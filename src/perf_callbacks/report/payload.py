"""The content of a report as plain values, ready for JSON, in the order of the page."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from perf_callbacks.flops.peaks.peak_rates import TERA
from perf_callbacks.kernel.records.fit_records import Flops, Summary, Window
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.summary_parts import FlopsSummary
from perf_callbacks.report import machine, run_title, slow_steps, tables
from perf_callbacks.report.cards import verdict
from perf_callbacks.report.events import marks
from perf_callbacks.report.heat_map import heat_map
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import listed
from perf_callbacks.report.opening_card import TIMELINES
from perf_callbacks.report.series import (
    Band,
    Outlier,
    StepSeries,
    medians,
    outliers,
    rounded,
    series,
    short,
)
from perf_callbacks.report.tables import Table, distinct_stalls, stalled_seconds
from perf_callbacks.report.units import duration, long_duration, percent, rate, speed


def payload(fits: Sequence[FitHistory], number: int = 0, within: range | None = None) -> dict[str, Any]:
    """Collect the content of the page for a fit.

    Args:
        fits: All fits in the journals.
        number: Number of the fit from 1 on; 0: the last fit.
        within: The steps to show. None: all.
    """
    fit = fits[number - 1]
    notes: list[str] = [*_notes(fits, number, fit, within)]

    def guarded(name: str, make: Callable[[], Any]) -> Any:
        """Make a part of the page. If the journal holds impossible values, add a note and return None."""
        try:
            return make()
        except (ArithmeticError, LookupError, ValueError):
            notes.append(f"{name}: not shown, because values in the journal contradict each other.")
            return None

    drawn = series(fit, within=within)
    usual = {rank: medians(fit, rank) for rank in fit.ranks}
    slow = outliers(fit, usual, within)
    count = _count(fit)
    peak = _peak(fit)
    summary = fit.summary
    rows: list[tuple[str, Callable[[], Table | None]]] = [
        ("findings", lambda: tables.findings(fit)),
        ("worst", lambda: slow_steps.table(fit, slow, usual)),
        ("ranks", lambda: tables.ranks(usual)),
        ("phases", lambda: None if count is None else tables.phases(count)),
        ("products", lambda: None if count is None else tables.products(count, tensor_cores=fit.run.tensor_cores)),
        ("uncounted", lambda: None if count is None else tables.uncounted(count, summary)),
        ("checklist", lambda: tables.checklist(fit)),
        ("stalls", lambda: tables.stalls(fit)),
        ("stragglers", lambda: None if summary is None else tables.stragglers(summary)),
        ("environment", lambda: tables.environment(fit)),
    ]
    found = {name: guarded(name, make) for name, make in rows}
    content = {
        "title": _title(fit),
        "verdict": guarded("The verdict", lambda: _verdict(fit, drawn)),
        "figures": guarded("The figures", lambda: _figures(fit, drawn, peak)),
        "steps": guarded("Steps", lambda: _steps(drawn, slow)),
        "rate": guarded("MFU", lambda: _rate(drawn, peak)),
        "stages": guarded("Stages", lambda: _stages(drawn)),
        "marks": guarded("Events", lambda: marks(fit, within)),
        "account": guarded("Wall time", lambda: _account(fit)),
        "peak": guarded("Peak", lambda: _of_peak(fit, drawn, peak)),
        "memory": guarded("Memory", lambda: machine.memory(fit.first[-1].last(Memory))),
        "use": guarded("Use", lambda: machine.use(fit)),
        "heat": guarded("Ranks", lambda: heat_map(fit, within)),
        "tables": {name: asdict(table) for name, table in found.items() if table is not None},
    }
    return content | {"notes": notes}


def _title(fit: FitHistory) -> dict[str, str]:
    run = fit.run
    ranks = f"{fit.world_size:,} ranks" if fit.world_size > 1 else "1 process"
    attempts = f"{len(fit.first)} attempts" if len(fit.first) > 1 else ""
    version = run.versions.get("perf_callbacks", "")
    parts = [run.door, run.device, ranks, attempts, TIMELINES.get(run.timeline, run.timeline)]
    return {
        "run": run.run_id,
        "name": run_title.title(run),
        "details": " · ".join(part for part in parts if part),
        "started": tables.when(fit.first[0].run.started_unix),
        "version": f"perf_callbacks {version}".strip(),
    }


def _notes(fits: Sequence[FitHistory], number: int, fit: FitHistory, within: range | None) -> Iterable[str]:
    if len(fits) > 1:
        shown = number or len(fits)
        yield f"These journals hold {len(fits)} fits, and this is number {shown}. To show another fit: --fit NUMBER."
    if fit.missing:
        missing = f"{listed(fit.missing)}, of {fit.world_size:,}"
        yield f"Ranks without a journal here: {missing}. No figure on this page includes them."
    if fit.newer is not None:
        yield f"A newer version wrote the journal (schema {fit.newer}): this page doesn't show what that version added."
    if within is not None:
        yield (
            f"The charts, step time, MFU and TFLOPS cover only the steps {within.start:,} to {within.stop - 1:,}. "
            "All other figures cover the whole run."
        )
    if fit.summary is None or fit.summary is fit.first[-1].interim:
        so_far = (
            "" if fit.summary is None else f" The summary here covers the first {long_duration(fit.first[-1].seconds)}."
        )
        yield f"Rank 0 wrote no summary at its end: the run was killed, or is still going on.{so_far}"
    elif fit.summary.failure:
        yield f"Measuring stopped early: {fit.summary.failure}."


def _verdict(fit: FitHistory, drawn: StepSeries) -> str:
    summary = fit.hang or fit.summary
    said = "" if summary is None else verdict(summary)
    said = said or _last_stall(fit, drawn)
    if said:
        return said
    if not drawn.steps:
        return "No step was measured."
    largest = max(drawn.stage_seconds.items(), key=lambda item: item[1], default=None)
    pace = f"{duration(drawn.mean_seconds)} per step"
    if largest is None or not drawn.seconds:
        return f"{pace}. The stages of a step are unknown."
    return f"{pace}, of which {largest[0].removesuffix('_time')} took {largest[1] / drawn.seconds:.0%}."


def _last_stall(fit: FitHistory, drawn: StepSeries) -> str:
    """Describe the stall after which no step ended. Empty: there is no such stall, or the run has a summary."""
    found = [one for one in distinct_stalls(fit) if fit.summary is None and one.step >= drawn.axis.last]
    if not found:
        return ""
    stall = max(found, key=lambda one: one.since_seconds)
    line = f" at {stall.stack[-1]}" if stall.stack else ""
    seconds = duration(stalled_seconds(fit, stall))
    return f"The training hangs after step {stall.step:,}: rank {stall.rank} in {stall.stage}{line}, for {seconds}."


def _figures(fit: FitHistory, drawn: StepSeries, peak: float | None) -> list[dict[str, str]]:
    summary = fit.summary
    flops = (None if summary is None else summary.flops) or FlopsSummary()
    ranks = f"mean of {drawn.steps:,} steps" + (f" of {len(fit.ranks):,} ranks" if len(fit.ranks) > 1 else "")
    figures = [("step time", duration(drawn.mean_seconds), ranks)]
    count = _count(fit)
    low = "≥ " if count is not None and count.lower_bound else ""
    if drawn.flops_seconds:
        done = drawn.flops / drawn.flops_seconds
        if peak:
            kind = "measured peak" if flops.peak_measured else "peak"
            dtype = "" if flops.dtype is None else f", {flops.dtype}"
            note = f"of the {kind}, {speed(peak)}{dtype}"
            note += "; a lower bound: some work is uncounted" if low else ""
            figures.append(("MFU", f"{low}{percent(done / peak)}", note))
        number, unit = speed(done).split()
        figures.append((unit, f"{low}{number}", "model FLOPs per second and rank"))
    figures += _rates(fit)
    if summary is not None and summary.gc is not None:
        longest = duration(summary.gc.longest)
        attempt = f", in attempt {summary.attempt}" if summary.attempt > 1 else ""
        note = f"{sum(summary.gc.collections):,} collections, longest {longest}{attempt}"
        figures.append(("garbage collection", duration(summary.gc.seconds), note))
    wall = sum(attempt.seconds for attempt in fit.first)
    done = sum(count for _, count in fit.kept(min(fit.ranks)))
    attempts = f" in {len(fit.first)} attempts" if len(fit.first) > 1 else ""
    repeated = sum(count for _, count in fit.restarts)
    attempts += f", {repeated:,} of them repeated after restarts" if repeated else ""
    figures.append(("run time", long_duration(wall), f"{done:,} steps done{attempts}"))
    return [dict(zip(("name", "value", "note"), figure, strict=True)) for figure in figures]


def _rates(fit: FitHistory) -> Iterable[tuple[str, str, str]]:
    """Yield the rates of the whole job. If ranks exchanged no windows, yield the rates of a single rank."""
    windows: list[Window] = [window for attempt in fit.first for window in attempt.of(Window)]
    for name in ("tokens", "samples"):
        known = [(getattr(window, name), window.seconds) for window in windows]
        known = [(amount, seconds) for amount, seconds in known if amount and seconds > 0]
        if known:
            value = sum(amount for amount, _ in known) / sum(seconds for _, seconds in known)
            yield f"{name}/s", rate(value), "all ranks"
        elif fit.summary is not None and fit.summary.included_seconds > 0:
            amount = getattr(fit.summary, f"included_{name}")
            if amount:
                yield f"{name}/s", rate(amount / fit.summary.included_seconds), "one rank" if fit.world_size > 1 else ""


def _steps(drawn: StepSeries, slow: Sequence[Outlier]) -> dict[str, Any] | None:
    if not drawn.steps:
        return None
    axis = drawn.axis
    means = [value for value in drawn.times.mean if value is not None]
    slowest = max(slow, key=lambda one: one.seconds, default=None)
    text = f"Step time over {axis.last - axis.first + 1:,} steps: {duration(drawn.mean_seconds)} on average"
    text += f", {duration(min(means))} to {duration(max(means))} for the mean of a point."
    if slowest is not None:
        text += f" The slowest step is {slowest.step:,} on rank {slowest.rank} with {duration(slowest.seconds)}."
    return {
        "x": short(axis.middles, 12),
        "width": axis.width,
        "first": axis.first,
        "last": axis.last,
        **_band(drawn.times),
        "outliers": [[one.step, rounded(one.seconds), one.rank, one.reason] for one in slow],
        "text": text,
    }


def _band(band: Band, scale: float = 1.0) -> dict[str, list[float | None]]:
    return {
        name: short([None if one is None else one / scale for one in values])
        for name, values in (("least", band.least), ("mean", band.mean), ("most", band.most))
    }


def _rate(drawn: StepSeries, peak: float | None) -> dict[str, Any] | None:
    if not drawn.flops_seconds:
        return None
    band = _band(drawn.flops_per_second, peak or TERA)
    mean = drawn.flops / drawn.flops_seconds / (peak or TERA)
    said = percent(mean) if peak else speed(mean * TERA)
    text = f"{'MFU' if peak else 'Model TFLOPS'} over the steps: {said} on average."
    return {"unit": "share" if peak else "TFLOPS", **band, "text": text}


def _stages(drawn: StepSeries) -> dict[str, Any] | None:
    if not drawn.shares or not drawn.seconds:
        return None
    parts = {name.removesuffix("_time"): drawn.stage_seconds[name] / drawn.seconds for name in drawn.shares}
    text = "Share of each stage in the steps: " + ", ".join(f"{name} {share:.1%}" for name, share in parts.items())
    return {
        "names": [*parts],
        "totals": [rounded(share) for share in parts.values()],
        "shares": [short(values) for values in drawn.shares.values()],
        "text": f"{text}.",
    }


def _account(fit: FitHistory) -> dict[str, Any] | None:
    summary = fit.summary
    wall = 0.0 if summary is None else sum(summary.wall_seconds.values())
    if summary is None or wall <= 0:
        return None
    parts = [
        (name.replace("_", " ").replace("flop", "FLOP"), seconds, duration(seconds))
        for name, seconds in summary.wall_seconds.items()
        if seconds > 0
    ]
    attempt = f" of attempt {summary.attempt}" if summary.attempt > 1 else ""
    return machine.bar(f"{duration(wall)} in all, on rank {min(fit.ranks)}{attempt}", parts, wall)


def _of_peak(fit: FitHistory, drawn: StepSeries, peak: float | None) -> dict[str, Any] | None:
    count = _count(fit)
    if not drawn.flops_seconds or not peak or count is None or count.model_flops <= 0:
        return None
    mfu = drawn.flops / drawn.flops_seconds / peak
    extra = max(0.0, mfu * (count.hardware_flops / count.model_flops - 1))
    parts = [("model FLOPs (MFU)", mfu, percent(mfu))]
    if extra:
        parts.append(("recomputation", extra, percent(extra)))
    parts.append(("unused", max(0.0, 1 - mfu - extra), f"{max(0.0, 1 - mfu - extra):.1%}"))
    return machine.bar(f"HFU {percent(mfu + extra)} of {speed(peak)}", parts, max(1.0, mfu + extra))


def _count(fit: FitHistory) -> Flops | None:
    """Return the last count of a whole step, or else the last count of all. None: no step was counted."""
    counts: list[Flops] = [count for attempt in fit.first for count in attempt.of(Flops)]
    return next((count for count in reversed(counts) if count.whole_step), counts[-1] if counts else None)


def _peak(fit: FitHistory) -> float | None:
    """Return a device's peak in FLOPs per second, from the summary or the last row."""
    summary: Summary | None = fit.summary
    peak = None if summary is None or summary.flops is None else summary.flops.peak_flops_per_second
    if peak is not None and peak > 0:
        return peak
    logged = fit.first[-1].peak_tflops
    return logged * TERA if logged and logged > 0 else None
