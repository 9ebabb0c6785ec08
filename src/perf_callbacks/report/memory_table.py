"""The memory of a recorded fit as text: its parts, and resident memory with its slope."""

from collections.abc import Iterable, Sequence

from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.memory.use import Point, known, leak, slope
from perf_callbacks.report.history import Attempt, possible
from perf_callbacks.report.layout import COLUMNS, card, clean
from perf_callbacks.report.units import DASH, size

SOURCES = {
    "operations": "activations and temporary memory: the tensors that the counted step made",
    "allocator": "activations, with temporary memory: the peak of the device's allocator without the other parts",
    None: "activations and temporary memory are unknown: no step was counted",
}


def facts(fit: Attempt) -> dict[str, object]:
    """Return the memory figures in a fit's records, for JSON."""
    parts: Memory | None = fit.last(Memory)
    points, anonymous = _points(fit, "resident_gb"), _points(fit, "anonymous_gb")
    return {
        "rank": fit.run.rank,
        "step": None if parts is None else parts.step,
        "device": None if parts is None else parts.device,
        "source": None if parts is None else parts.source,
        "gb": {} if parts is None else _sizes(parts),
        "resident_gb": points[-1].gb if points else None,
        "resident_gb_per_hour": slope(points),
        "anonymous_gb_per_hour": slope(anonymous),
        "leak": None if slope(anonymous) is None else leak(anonymous) is not None,
    }


def render(fit: Attempt, columns: int = COLUMNS) -> str:
    """Render the memory of a rank's fit."""
    parts: Memory | None = fit.last(Memory)
    rank = f"rank {fit.run.rank}"
    if parts is None:
        lines = [f"{rank}: no `memory` record: the fit ended before its third step, or an older version wrote it"]
    else:
        lines = [f"{rank}, step {parts.step}, on {clean(parts.device)}", *_table(parts)]
    lines += _host(_points(fit, "resident_gb"), _points(fit, "anonymous_gb"))
    return card(lines, columns)


def _table(parts: Memory) -> Iterable[str]:
    sizes = _sizes(parts)
    peak = sizes.get("peak")
    for name in ("weights", "gradients", "optimizer", "activations", "temporary", "context", "peak"):
        if name == "context" and name not in sizes:
            continue
        share = f"{sizes[name] / peak:8.1%}" if peak and name in sizes and name not in {"context", "peak"} else ""
        yield f"{name:<12}{size(sizes[name]) if name in sizes else DASH:>10}{share}".rstrip()
    yield SOURCES.get(parts.source, "")


def _host(points: Sequence[Point], anonymous: Sequence[Point]) -> Iterable[str]:
    if not points:
        return
    growth, own, found = slope(points), slope(anonymous), leak(anonymous)
    pace = "" if growth is None else f", slope {growth:+.3f} GB per hour"
    yield f"host memory: from {size(points[0].gb)} to {size(points[-1].gb)}{pace}"
    if growth is None:
        yield "too few `use` records for a slope: at least 3 minutes are needed"
    elif own is None:
        yield "leaks unknown: the journal doesn't separate anonymous memory from pages of files"
    elif found is None:
        yield f"without pages of files {own:+.3f} GB per hour: no leak"
    else:
        step = "" if found.gb_per_step is None else f", {size(found.gb_per_step)} per step"
        yield f"without pages of files {own:+.3f} GB per hour{step}: a leak, it doesn't level off"


def _sizes(parts: Memory) -> dict[str, float]:
    """Return the known parts, without sizes that no run can have."""
    return {name: gb for name, gb in known(parts).items() if possible(gb)}


def _points(fit: Attempt, field: str) -> list[Point]:
    """Return the known values of a field of the `use` records."""
    uses = [(entry.t, entry.record) for entry in fit.entries if isinstance(entry.record, Use)]
    points = [Point(t, use.step, getattr(use, field)) for t, use in uses if getattr(use, field) is not None]
    return [point for point in points if possible(point.gb)]
