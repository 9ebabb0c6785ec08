"""The content of a report as plain values, ready for JSON."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from perf_callbacks.kernel.records.fit_records import SCHEMA
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.units import TERA
from perf_callbacks.report import charts, module_table, overlay, profile_section, run_title, tables
from perf_callbacks.report.cards import verdict
from perf_callbacks.report.events import marks
from perf_callbacks.report.figure_inputs import FigureInputs
from perf_callbacks.report.figure_table import BY_FIGURE
from perf_callbacks.report.heat_map import heat_map
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import listed
from perf_callbacks.report.point_names import PointNames
from perf_callbacks.report.series import (
    BUCKETS,
    Axis,
    Band,
    Outlier,
    StepSeries,
    medians,
    outliers,
    rounded,
    series,
    short,
)
from perf_callbacks.report.tables import Table, stalled_seconds
from perf_callbacks.report.tiles import tiles
from perf_callbacks.report.units import duration, long_duration, percent, speed
from perf_callbacks.report.work_rate import WorkRate


def payload(
    fits: Sequence[FitHistory], number: int = 0, within: range | None = None, other: FitHistory | None = None
) -> dict[str, Any]:
    """Collect the content of the page for a fit. Number 1 is the oldest fit, and 0 means the newest."""
    fit = fits[number - 1]
    notes: list[str] = [*_notes(fits, number, fit, within)]

    def guarded(name: str, make: Callable[[], Any]) -> Any:
        """If the journal holds impossible values, add a note and return None."""
        try:
            return make()
        except (ArithmeticError, LookupError, ValueError):
            notes.append(f"{name}: not shown, because values in the journal contradict each other.")
            return None

    axis = Axis([fit] if other is None else [fit, other], BUCKETS, within)
    drawn = series(fit, axis)
    usual = {rank: medians(fit, rank) for rank in fit.ranks}
    slow = outliers(fit, usual, within)
    work = WorkRate.from_fit(fit, drawn)
    names = PointNames(len(fit.ranks), axis.width)
    count, summary = work.count, fit.summary
    rows: list[tuple[str, Callable[[], Table | None]]] = [
        ("findings", lambda: tables.findings(fit)),
        ("worst", lambda: tables.slow_steps(fit, slow, usual)),
        ("ranks", lambda: tables.ranks(usual)),
        ("phases", lambda: None if count is None else tables.phases(count)),
        ("modules", lambda: module_table.table(fit.first[-1])),
        ("products", lambda: None if count is None else tables.products(count, tensor_cores=fit.run.tensor_cores)),
        ("uncounted", lambda: None if count is None else tables.uncounted(count, summary)),
        ("checklist", lambda: tables.checklist(fit)),
        ("stalls", lambda: tables.stalls(fit)),
        ("stragglers", lambda: None if summary is None else tables.stragglers(summary)),
        ("environment", lambda: tables.environment(fit)),
    ]
    made = {name: guarded(name, make) for name, make in rows}
    content: dict[str, Any] = {
        "title": run_title.heading(fit),
        "verdict": guarded("The verdict", lambda: _verdict(fit, drawn)),
        "figures": guarded("The figures", lambda: tiles(fit, drawn, work)),
        "steps": guarded("Steps", lambda: _steps(drawn, slow, names)),
        "rate": guarded("MFU", lambda: _rate(drawn, work, names)),
        "stages": guarded("Stages", lambda: _stages(drawn)),
        "marks": guarded("Events", lambda: marks(fit, within)),
        "account": guarded("Wall time", lambda: charts.account(fit)),
        "goodput": guarded("Attempts", lambda: charts.attempts(fit)),
        "peak": guarded("Peak", lambda: charts.peak(work)),
        "memory": guarded("Memory", lambda: charts.memory(fit.first[-1].last(Memory))),
        "use": guarded("Use", lambda: charts.use(fit)),
        "heat": guarded("Ranks", lambda: heat_map(fit, within)),
        "profiles": guarded("Profiles", lambda: profile_section.parts(fit)),
        "tables": {name: asdict(table) for name, table in made.items() if table is not None},
    }
    if other is not None:
        guarded("Run B", lambda: overlay.add(content, notes, fit, other, axis))
    headings: dict[str, list[str]]
    headings = {name: [] for name, part in content.items() if part is not None and name in BY_FIGURE}
    headings |= {chart["title"]: [] for chart in content["use"] or ()}
    shown = [*content["tables"].items()]
    for part in content["profiles"] or ():
        headings |= {name: [] for name in profile_section.BARS if part[name] is not None}
        shown += part["tables"].items()
    headings |= {name: [heading for heading, _ in table["columns"]] for name, table in shown}
    how = FigureInputs(fit, drawn, slow, usual, work).explained(headings)
    return content | {"how": how, "notes": notes}


def _notes(fits: Sequence[FitHistory], number: int, fit: FitHistory, within: range | None) -> Iterable[str]:
    if len(fits) > 1:
        shown = number or len(fits)
        yield f"These journals hold {len(fits)} fits, and this is number {shown}. To show another fit: --fit NUMBER."
    if fit.missing:
        missing = f"{listed(fit.missing)}, of {fit.world_size:,}"
        yield f"Ranks without a journal here: {missing}. No figure on this page includes them."
    full = next((attempt.full for _, attempt in fit.attempts if attempt.full), "")
    if full:
        yield f"R{full[1:]}. The charts show no other steps."
    for schema in sorted({attempt.run.schema for _, attempt in fit.attempts} - {SCHEMA}):
        yield f"Another version wrote the journal (schema {schema}, not {SCHEMA}). Records that differ are not shown."
    if within is not None:
        yield (
            f"The charts, step time, MFU and TFLOPS cover only the steps {within.start:,} to {within.stop - 1:,}. "
            "All other figures cover the whole run."
        )
    if fit.summary is None or fit.summary is fit.first[-1].interim:
        so_far = (
            ""
            if fit.summary is None
            else f" The summary here covers the first {long_duration(fit.first[-1].interim_seconds)}."
        )
        yield f"Rank 0 wrote no summary at its end: the run was killed, or is still going on.{so_far}"
    if fit.failure is not None:
        yield f"Measuring stopped early: {fit.failure}."


def _verdict(fit: FitHistory, drawn: StepSeries) -> str:
    sentence = verdict(fit.hang) if fit.hang is not None else _last_stall(fit)
    if not sentence and fit.summary is not None:
        sentence = verdict(fit.summary)
    if sentence:
        return sentence
    if not drawn.steps:
        return "No step was measured."
    largest = max(drawn.stage_seconds.items(), key=lambda item: item[1], default=None)
    pace = f"{duration(drawn.mean_seconds)} per step"
    if largest is None or not drawn.seconds:
        return f"{pace}. The stages of a step are unknown."
    return f"{pace}, of which {largest[0].removesuffix('_time')} took {largest[1] / drawn.seconds:.0%}."


def _last_stall(fit: FitHistory) -> str:
    stall = max(fit.last_stalls, key=lambda stall: stall.since_seconds, default=None)
    if stall is None:
        return ""
    line = f" at {stall.stack[-1]}" if stall.stack else ""
    seconds = duration(stalled_seconds(fit, stall))
    return f"The training hangs after step {stall.step:,}: rank {stall.rank} in {stall.stage}{line}, for {seconds}."


def _steps(drawn: StepSeries, slow: Sequence[Outlier], names: PointNames) -> dict[str, Any] | None:
    if not drawn.steps:
        return None
    axis = drawn.axis
    means = [value for value in drawn.times.mean if value is not None]
    slowest = max(slow, key=lambda step: step.seconds, default=None)
    first, last = drawn.ends
    text = f"Step time over {last - first + 1:,} steps: {duration(drawn.mean_seconds)} on average"
    text += f", {duration(min(means))} to {duration(max(means))} for {names.point}."
    if slowest is not None:
        text += f" The slowest step is {slowest.step:,} on rank {slowest.rank} with {duration(slowest.seconds)}."
    return {
        "x": short(axis.middles, 12),
        "width": axis.width,
        "first": axis.first,
        "last": axis.last,
        **_band(drawn.times),
        "names": names.times,
        "about": names.about,
        "outliers": [[step.step, rounded(step.seconds), step.rank, step.reason] for step in slow],
        "text": text,
    }


def _band(band: Band, scale: float = 1.0) -> dict[str, list[float | None]]:
    return {
        name: short([None if mean is None else mean / scale for mean in values])
        for name, values in (("least", band.least), ("mean", band.mean), ("most", band.most))
    }


def _rate(drawn: StepSeries, work: WorkRate, names: PointNames) -> dict[str, Any] | None:
    if work.per_second is None:
        return None
    rate = speed(work.per_second) if work.mfu is None else percent(work.mfu)
    text = f"{'Model TFLOPS' if work.mfu is None else 'MFU'} over the steps: {rate} on average."
    unit = "TFLOPS" if work.mfu is None else "share"
    whole = (work.peak or TERA) * work.devices  # the chart shows an MFU of 100 %, or 1 TFLOPS per device, as 1
    return {"unit": unit, **_band(drawn.flops_per_second, whole), "names": names.rates, "text": text}


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
