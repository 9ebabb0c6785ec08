"""Charts of the report: a bar for the memory of a step, and lines for the load and memory of the machine."""

from collections.abc import Sequence
from typing import Any

from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.memory.use import known
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.series import rounded, short
from perf_callbacks.report.units import size

FEWEST = 3
"""Smallest number of points for which a line is drawn."""

POINTS = 1000
"""A long line has at least this many points, but fewer than twice as many. Of 5,000 records, every fifth record is
drawn."""

SHARES = {"CPU load": "cpu_load", "GPU utilization": "gpu_utilization"}
SIZES = {"host memory": "resident_gb", "GPU memory": "gpu_memory_gb"}
"""Maps the name of a line to the field of the `use` records that the line shows."""


def bar(title: str, parts: Sequence[tuple[str, float, str]], whole: float) -> dict[str, Any]:
    """Return the bar that shows parts of a whole. Each part has a name, a size and a text."""
    said = ", ".join(f"{name} {value}" for name, _, value in parts)
    found = [{"name": name, "share": rounded(part / whole), "value": value} for name, part, value in parts]
    return {"title": title, "parts": found, "text": f"{title}: {said}."}


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
