"""The memory of a recorded fit as text: the parts of device memory, and host memory with its growth per hour."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.machine_records import Memory, OutOfMemory, Use
from perf_callbacks.memory import out_of_memory_text
from perf_callbacks.memory.estimate import fitting_micro_batch, headroom_gb, layers_of, layers_to_checkpoint
from perf_callbacks.memory.use import PARTS, MemoryReading, leak, parts_in_gb, slope
from perf_callbacks.report.history import Attempt, possible
from perf_callbacks.report.layout import COLUMNS, card, clean
from perf_callbacks.report.units import DASH, size

WIDTH = 12

SOURCES = {
    "operations": "activations and temporary memory: the tensors that the counted step made",
    "allocator": "activations, with temporary memory: the peak of the device's allocator without the other parts",
    None: "activations and temporary memory are unknown: no step was counted",
}


def facts(fit: Attempt, limit_gb: float | None = None, batch: int | None = None) -> dict[str, object]:
    """For JSON. For `limit_gb` and `batch`, see `fitting`."""
    parts: Memory | None = fit.last(Memory)
    failed: OutOfMemory | None = fit.last(OutOfMemory)
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
        **fitting(fit, limit_gb, batch),
        "out_of_memory": None if failed is None else asdict(failed),
    }


def fitting(fit: Attempt, limit_gb: float | None = None, batch: int | None = None) -> dict[str, int | None]:
    """Return the largest micro-batch that fits, and how many layers must be checkpointed so that `batch` fits.

    `batch` is twice the measured micro-batch by default. Without `limit_gb`, only the device's free memory is a limit.
    """
    parts: Memory | None = fit.last(Memory)
    counted: Flops | None = fit.last(Flops)
    room = None if parts is None else headroom_gb(parts, limit_gb)
    layers = None if counted is None else layers_of(counted.modules)
    measured = None if parts is None else parts.micro_batch
    batch = batch or (None if measured is None else 2 * measured)
    return {
        "micro_batch": measured,
        "fitting_micro_batch": None if parts is None else fitting_micro_batch(parts, room),
        "wanted_micro_batch": batch,
        "layers": None if layers is None else layers.number,
        "layers_to_checkpoint": None if parts is None else layers_to_checkpoint(parts, room, layers, batch),
    }


def render(fit: Attempt, columns: int = COLUMNS, limit_gb: float | None = None, batch: int | None = None) -> str:
    """For `limit_gb` and `batch`, see `fitting`."""
    parts: Memory | None = fit.last(Memory)
    rank = f"rank {fit.run.rank}"
    if parts is None:
        lines = [f"{rank}: no `memory` record: the fit ended before its third step"]
    else:
        lines = [f"{rank}, step {parts.step}, on {clean(parts.device)}", *table(_sizes(parts))]
        lines += [SOURCES.get(parts.source, ""), *_fitting(fitting(fit, limit_gb, batch))]
    failed: OutOfMemory | None = fit.last(OutOfMemory)
    if failed is not None:
        lines += [clean(line, 600) for line in out_of_memory_text.lines(failed, fit.run.rank)]
    lines += _host(_points(fit, "resident_gb"), _points(fit, "anonymous_gb"))
    return card(lines, columns)


def table(sizes: Mapping[str, float], names: Sequence[str] = PARTS) -> Iterable[str]:
    peak = sizes.get("peak")
    for name in names:
        if name == "context" and name not in sizes:
            continue
        share = f"{sizes[name] / peak:8.1%}" if peak and name in sizes and name not in {"context", "peak"} else ""
        yield f"{name:<{WIDTH}}{size(sizes[name]) if name in sizes else DASH:>10}{share}".rstrip()


def _fitting(figures: Mapping[str, int | None]) -> Iterable[str]:
    fits, number = figures["fitting_micro_batch"], figures["layers_to_checkpoint"]
    if fits == 0:
        yield f"no micro-batch would fit for sure (measured with {figures['micro_batch']})"
    elif fits is not None:
        yield f"micro-batch {fits} would fit (measured with {figures['micro_batch']})"
        if number and figures["wanted_micro_batch"]:
            wanted = figures["wanted_micro_batch"]
            yield f"for micro-batch {wanted}, checkpointing {number} of {figures['layers']} layers is enough"


def _host(points: Sequence[MemoryReading], anonymous: Sequence[MemoryReading]) -> Iterable[str]:
    if not points:
        return
    growth, own, growing = slope(points), slope(anonymous), leak(anonymous)
    pace = "" if growth is None else f", slope {growth:+.3f} GB per hour"
    yield f"host memory: from {size(points[0].gb)} to {size(points[-1].gb)}{pace}"
    if growth is None:
        yield "too few `use` records for a slope: at least 3 minutes are needed"
    elif own is None:
        yield "leaks unknown: the journal doesn't separate anonymous memory from pages of files"
    elif growing is None:
        yield f"without pages of files {own:+.3f} GB per hour: no leak"
    else:
        step = "" if growing.gb_per_step is None else f", {size(growing.gb_per_step)} per step"
        yield f"without pages of files {own:+.3f} GB per hour{step}: a leak, it doesn't level off"


def _sizes(parts: Memory) -> dict[str, float]:
    return {name: gb for name, gb in parts_in_gb(parts).items() if possible(gb)}


def _points(fit: Attempt, field: str) -> list[MemoryReading]:
    uses = [(entry.t, entry.record) for entry in fit.entries if isinstance(entry.record, Use)]
    points = [MemoryReading(t, use.step, getattr(use, field)) for t, use in uses if getattr(use, field) is not None]
    return [point for point in points if possible(point.gb)]
