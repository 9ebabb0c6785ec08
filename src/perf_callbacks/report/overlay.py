"""A second run, B, in the report of a run: B's step times and figures, and the differences between the two runs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.kernel.records.shares import NOTABLE
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.report import comparison_text, run_title
from perf_callbacks.report.comparability import Values
from perf_callbacks.report.comparison import Comparison, compare
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import clean, listed
from perf_callbacks.report.series import Axis, series, short
from perf_callbacks.report.tables import CODE, LABEL, MOST_ROWS, NUMBER, TEXT, Table
from perf_callbacks.report.tiles import tiles
from perf_callbacks.report.units import DASH, duration
from perf_callbacks.report.work_rate import WorkRate

DECISIVE = (
    "program",
    "model",
    "parameters",
    "host",
    "device",
    "world_size",
    "batch",
    "samples per step",
    "tokens per step",
)

WORDS = {"door": "integration", "timeline": "timed by", "world_size": "number of ranks", "batch": "samples per batch"}
"""For fields whose names say too little."""


def add(content: dict[str, Any], notes: list[str], fit: FitHistory, other: FitHistory, axis: Axis) -> None:
    """Add a second run to the content of a page, and to the notes at its top. `axis` covers the steps of both runs."""
    drawn = series(other, axis)
    beside = {  # the name of a tile that shows TFLOPS is the unit
        tile["key"]: f"{tile['value']} {tile['name']}" if tile["key"] == "tflops" else tile["value"]
        for tile in tiles(other, drawn, WorkRate.from_fit(other, drawn))
    }
    for tile in content["figures"] or ():
        tile["other"] = beside.get(tile["key"])
    pace = f"{duration(drawn.mean_seconds)} on average over {drawn.steps:,} steps" if drawn.steps else "no steps here"
    content["other"] = {
        "run": clean(other.run_id),
        "mean": short(drawn.times.mean),
        "text": f"B: {pace}.",
    }
    comparison: Comparison | None
    try:
        comparison = compare([fit.last], [other.last], fail_over=NOTABLE)
    except (ArithmeticError, LookupError, ValueError):  # impossible values in a journal, or a run without steps
        comparison = None
    differences = dict(_facts(fit, other)) | dict({} if comparison is None else comparison.differences)
    made = {
        "comparison": None if comparison is None else _comparison(comparison),
        "differences": _table(differences),
    }
    content["tables"] |= {name: asdict(table) for name, table in made.items() if table is not None}
    notes += _notes(other, differences)


def _comparison(comparison: Comparison) -> Table:
    """Runs that are not alike get neither changes nor a verdict."""
    rows, alike = [], not comparison.unlike
    for metric in comparison.metrics:
        name, a, b, *change, verdict = comparison_text.row(metric)
        if not alike:
            change = [DASH, DASH]
        rows.append((name, a, b, *change, verdict if alike and name not in comparison.not_compared else "no verdict"))
    columns = [(name, NUMBER) for name in ("A", "B", "change", "99 % interval")]
    steps = " and ".join(f"{number:,}" for number in comparison.steps)
    note = [f"{comparison_text.verdict(comparison)}. Measured steps: {steps}."]
    for reason in dict.fromkeys(comparison.not_compared.values()) if alike else ():
        names = [name for name, why in comparison.not_compared.items() if why == reason]
        note.append(f"No verdict on {', '.join(names)}: {clean(reason, LONGEST_TEXT)}.")
    return Table("Comparison", [("metric", LABEL), *columns, ("verdict", TEXT)], rows, " ".join(note))


def _facts(fit: FitHistory, other: FitHistory) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in ("program", "command_line", "model", "parameters", "batch"):
        first, second = (getattr(run, name) for run in (fit.run, other.run))
        if first != second:
            yield name, (first, second)
    hosts = run_title.hosts(fit), run_title.hosts(other)
    if hosts[0] != hosts[1]:
        yield "host", hosts


def _table(differences: Values) -> Table | None:
    rows = [
        (clean(WORDS.get(name, name)).replace("_", " "), clean(a, LONGEST_TEXT), clean(b, LONGEST_TEXT))
        for name, (a, b) in differences.items()
    ]
    columns = [("what", TEXT), ("A", CODE), ("B", CODE)]
    rest = f"{len(rows) - MOST_ROWS:,} more differ." if len(rows) > MOST_ROWS else ""
    return Table("Differences", columns, rows[:MOST_ROWS], rest) if rows else None


def _notes(other: FitHistory, differences: Values) -> Iterator[str]:
    run: Run = other.run
    yield f"Run B is {run_title.title(run)}, run {clean(run.run_id)}. This run is A."
    decisive = [WORDS.get(name, name) for name in DECISIVE if name in differences]
    if decisive:
        yield f"A and B differ in {', '.join(decisive)}: a change of a figure may come from there."
    if other.missing:
        yield f"Ranks of B without a journal: {listed(other.missing)}. No figure of B includes them."
