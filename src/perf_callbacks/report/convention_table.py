"""Table of the FLOPs of a step as each convention counts them, with the differences between the conventions."""

from collections.abc import Iterable, Mapping

from perf_callbacks.flops.calculator.architecture import Architecture
from perf_callbacks.flops.calculator.conventions import (
    CLOSE,
    ConventionFigures,
    ConventionWork,
    Job,
    differences,
    share,
)
from perf_callbacks.flops.peaks.peak_rates import TERA
from perf_callbacks.report.layout import aligned
from perf_callbacks.report.units import DASH, duration, percent, speed

OURS = "matmul"
_COLUMNS = ("model FLOPs", "hardware FLOPs", "model TFLOPS/GPU", "hardware TFLOPS/GPU", "MFU", "HFU")


def render(
    model: Architecture,
    work: ConventionWork,
    job: Job,
    results: Mapping[str, ConventionFigures],
    *,
    peak: str | None = None,
) -> str:
    lines = [_model(model), _run(work, job, peak), "", *_table(results, job), "", *_apart(model, work, results)]
    return "\n".join(lines)


def _model(model: Architecture) -> str:
    parts = [
        _some(model.layers, "layers"),
        _some(model.hidden, "wide"),
        _some(model.heads, "heads") + ("" if model.kv_heads is None else f" and {model.kv_heads} of keys and values"),
        f"{model.active_experts} of {model.experts} experts" if model.experts else "",
        _some(model.vocab, "tokens in the vocabulary"),
        _some(model.outputs, "outputs instead of the vocabulary"),
        _some(model.params, "parameters"),
    ]
    return "model: " + ", ".join(part for part in parts if part)


def _some(number: int | None, what: str) -> str:
    return "" if number is None else f"{number:,} {what}"


def _run(work: ConventionWork, job: Job, peak: str | None) -> str:
    parts = [
        f"{work.batch:,} x {work.seq:,} tokens a step",
        f"on {job.gpus:,} GPUs" if job.gpus > 1 else "on one GPU",
        "" if job.step_seconds is None else f"in {duration(job.step_seconds)}",
        f"{work.recompute} recomputation" if work.recompute != "none" else "",
        "gradients for adapters alone" if work.trainable == "lora" else "",
        "half of attention for matmul" if work.causal == "half" else "",
        "" if job.peak_flops_per_second is None else f"peak {speed(job.peak_flops_per_second, 6)} ({peak})",
    ]
    return "run: " + ", ".join(part for part in parts if part)


def _table(results: Mapping[str, ConventionFigures], job: Job) -> Iterable[str]:
    rows = [(" " * 17, *[column.rjust(11) for column in _COLUMNS])]
    for name, result in results.items():
        cells = (
            name,
            _flops(result.model_flops_per_step),
            _flops(result.hardware_flops_per_step),
            _number(result.model_tflops_per_gpu),
            _number(share(result.hardware_flops_per_step, job, TERA)),
            percent(result.mfu),
            percent(result.hfu),
        )
        rows.append(cells)
    return aligned(rows, right=range(1, 7))


def _apart(model: Architecture, work: ConventionWork, results: Mapping[str, ConventionFigures]) -> Iterable[str]:
    """Yield lines that say how much the conventions' model FLOPs differ, and why."""
    known = {name: result.model_flops_per_step for name, result in results.items() if result.model_flops_per_step}
    ours = known.get(OURS)
    if ours is None:
        yield f"Without layers, hidden and vocab there is no {OURS} to compare with."
        return
    shares = {name: flops / ours for name, flops in known.items()}
    if all(abs(value - 1) < CLOSE for value in shares.values()):
        yield "All conventions count this model's FLOPs alike."
        return
    low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    yield f"Model FLOPs lie between {shares[low]:.3f} ({low}) and {shares[high]:.3f} ({high}) of {OURS}:"
    alike: dict[tuple[str, str], list[str]] = {}
    for name, value in shares.items():
        reasons = "; ".join(differences(name, model, work))
        if reasons:
            alike.setdefault((f"{value:.3f}", reasons), []).append(name)
    yield from (f"  {value}  {', '.join(names)}: {reasons}" for (value, reasons), names in alike.items())


def _flops(value: int | None) -> str:
    return DASH if value is None else f"{value:.3e}"


def _number(value: float | None) -> str:
    """Format TFLOPS as a number without a unit. A value below 1 gets a smaller unit, such as GFLOPS."""
    if value is None:
        return DASH
    return f"{value:.1f}" if value >= 1 or not value else speed(value * TERA)
