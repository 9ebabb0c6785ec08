"""Memory and the use of the machine, as bars and lines of a report."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.report.history import MEMORY_KEYS, FitHistory
from perf_callbacks.report.series import rounded, short
from perf_callbacks.report.tables import memory_parts
from perf_callbacks.report.units import size

FEWEST = 3
"""Fewest points of a line."""

POINTS = 1000
"""Most points of a line."""

SHARES = {"CPU load": "cpu_load", "GPU utilization": "gpu_utilization"}
SIZES = {"host memory": "resident_gb", "GPU memory": "gpu_memory_gb"}
"""By name of a line, the field of a `use` record."""

T = TypeVar("T")


def bar(title: str, parts: Sequence[tuple[str, float, str]], whole: float) -> dict[str, Any]:
    """Return the bar that shows parts of a whole. Each part has a name, a size and a text."""
    said = ", ".join(f"{name} {value}" for name, _, value in parts)
    found = [{"name": name, "share": rounded(part / whole), "value": value} for name, part, value in parts]
    return {"title": title, "parts": found, "text": f"{title}: {said}."}


def memory(found: Memory | None) -> dict[str, Any] | None:
    """Draw the memory of a step by part."""
    parts = [] if found is None else [(name, gb, size(gb)) for name, gb in memory_parts(found)]
    if not parts:
        return None
    whole = sum(gb for _, gb, _ in parts)
    peak = "" if found is None or found.peak_gb is None else f"{size(found.peak_gb)} at its peak; "
    return bar(f"{peak}each part at its largest", parts, whole)


def use(fit: FitHistory) -> list[dict[str, Any]]:
    """Draw the use of the machine by the lowest rank."""
    uses = [found for attempt in fit.first for found in attempt.of(Use)]
    shown = _thinned(uses, lambda found: found.step)
    x = [found.step for found in shown]
    logged = _thinned([found for attempt in fit.first for found in attempt.memory], lambda found: found[0])
    allocator = {
        key.removeprefix("perf/").removesuffix("_gb").replace("_", " "): [metrics.get(key) for _, metrics in logged]
        for key in MEMORY_KEYS
    }
    charts = [
        _lines("Load", "share", x, {name: [getattr(found, key) for found in shown] for name, key in SHARES.items()}),
        _lines("Memory", "GB", x, {name: [getattr(found, key) for found in shown] for name, key in SIZES.items()}),
        _lines("Allocator", "GB", [step for step, _ in logged], allocator),
    ]
    return [chart for chart in charts if chart is not None]


def _thinned(found: list[T], step: Callable[[T], int]) -> list[T]:
    return sorted(found, key=step)[:: max(1, len(found) // POINTS)]


def _lines(title: str, unit: str, x: list[int], lines: dict[str, list[Any]]) -> dict[str, Any] | None:
    known = {name: values for name, values in lines.items() if any(value is not None for value in values)}
    if not known or len(x) < FEWEST:
        return None
    ends = ", ".join(f"{name} up to {max(v for v in values if v is not None):.3g}" for name, values in known.items())
    return {
        "title": title,
        "unit": unit,
        "x": x,
        "names": [*known],
        "values": [short(values) for values in known.values()],
        "text": f"{title} over the steps: {ends}{' (1 is 100 %)' if unit == 'share' else ' GB'}.",
    }
