"""The memory of a recorded fit as text: its parts, and resident memory with its slope."""

from collections.abc import Iterable, Sequence

from perf_callbacks.core.codec import Entry
from perf_callbacks.core.machine_records import Memory, Use
from perf_callbacks.core.memory_use import Leak, Point, known, leak, slope
from perf_callbacks.core.records import Run
from perf_callbacks.report.cards import DASH, clean, listed, size, wrapped
from perf_callbacks.report.comparison import absent
from perf_callbacks.report.history import possible

SOURCES = {
    "operations": "activations and temporary memory: the tensors that the counted step made",
    "allocator": "activations, with temporary memory: the peak of the device's allocator without the other parts",
    None: "activations and temporary memory are unknown: no step was counted",
}


def facts(fit: Sequence[Entry]) -> dict[str, object]:
    """Return what the records of a fit tell about memory, for JSON."""
    run, parts, points = fit[0].record, _parts(fit), _points(fit)
    found = leak(points)
    return {
        "rank": run.rank if isinstance(run, Run) else None,
        "step": None if parts is None else parts.step,
        "device": None if parts is None else parts.device,
        "source": None if parts is None else parts.source,
        "gb": {} if parts is None else _sizes(parts),
        "resident_gb": points[-1].resident_gb if points else None,
        "resident_gb_per_hour": slope(points),
        "leak": found is not None,
    }


def render(fit: Sequence[Entry]) -> str:
    """Render the memory of one rank's fit."""
    run, parts, points = fit[0].record, _parts(fit), _points(fit)
    rank = f"rank {run.rank}" if isinstance(run, Run) else "rank unknown"
    if parts is None:
        lines = [f"{rank}: no `memory` record: the fit ended before its third step, or a version without them wrote it"]
    else:
        lines = [f"{rank}, step {parts.step}, on {clean(parts.device)}", *_table(parts)]
    lines += _resident(points, leak(points))
    return "\n  ".join([part for line in lines for part in wrapped(line)])


def missing(fits: Sequence[Sequence[Entry]]) -> Iterable[str]:
    """Name the ranks that have no journal."""
    ranks = absent(fits)
    if ranks:
        yield f"ranks without a journal: {listed(ranks)}"


def _table(parts: Memory) -> Iterable[str]:
    sizes = _sizes(parts)
    peak = sizes.get("peak")
    for name in ("weights", "gradients", "optimizer", "activations", "temporary", "context", "peak"):
        if name == "context" and name not in sizes:
            continue
        share = f"{sizes[name] / peak:8.1%}" if peak and name in sizes and name not in {"context", "peak"} else ""
        yield f"{name:<12}{size(sizes[name]) if name in sizes else DASH:>10}{share}".rstrip()
    yield SOURCES.get(parts.source, "")


def _resident(points: Sequence[Point], found: Leak | None) -> Iterable[str]:
    if not points:
        return
    yield f"host memory: {size(points[0].resident_gb)} at first, {size(points[-1].resident_gb)} at last"
    growth = slope(points)
    if growth is None:
        yield "too few `use` records for a slope: with one in 10 s it takes three minutes"
    elif found is None:
        yield f"slope {growth:+.3f} GB per hour: no leak"
    else:
        step = "" if found.gb_per_step is None else f", {size(found.gb_per_step)} per step"
        yield f"slope {growth:+.3f} GB per hour{step}: a leak, it doesn't level off"


def _parts(fit: Sequence[Entry]) -> Memory | None:
    return next((entry.record for entry in reversed(fit) if isinstance(entry.record, Memory)), None)


def _sizes(parts: Memory) -> dict[str, float]:
    """Return the parts that are known, without sizes that no run can have."""
    return {name: gb for name, gb in known(parts).items() if possible(gb)}


def _points(fit: Sequence[Entry]) -> list[Point]:
    """Return the resident memory at each `use` record."""
    uses = [(entry.t, entry.record) for entry in fit if isinstance(entry.record, Use)]
    known_uses = [(t, use.step, use.resident_gb) for t, use in uses if use.resident_gb is not None]
    return [Point(t, step, gb) for t, step, gb in known_uses if possible(gb)]
