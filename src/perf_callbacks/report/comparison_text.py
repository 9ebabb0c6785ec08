"""A comparison of two runs as text, as Markdown for a pull request, and as values for JSON."""

from typing import Any

from perf_callbacks.flops.peaks.peak_rates import TERA
from perf_callbacks.report.batch_means import Change
from perf_callbacks.report.comparison import BETTER, SAME, UNDECIDED, WORSE, ComparedMetric, Comparison
from perf_callbacks.report.layout import COLUMNS, INDENT, aligned, clean, wrapped
from perf_callbacks.report.units import DASH, duration, rate, size, speed

SENTENCES = {
    WORSE: "B is slower",
    BETTER: "B is faster",
    SAME: "No regression",
    UNDECIDED: "Undecided, run more steps",
}

SENTENCE = 200
"""Most characters of a sentence that contains values from a journal."""

HEADERS = ("metric", "A", "B", "change", "99 % interval", "")


def verdict(comparison: Comparison) -> str:
    """Return a sentence that says if the second run is slower."""
    metric = comparison.decided_by
    if metric is None or metric.change is None or metric.verdict is None:
        return "Not decided: one of the runs has fewer than ten measured steps"
    told = f"{metric.name} changed by {_percent(metric.change.change)} ({_interval(metric.change)})"
    return f"{SENTENCES[metric.verdict]}: {told}"


def text(comparison: Comparison, columns: int = COLUMNS) -> str:
    """Render a comparison for a terminal."""
    lines = [
        *wrapped(f"{verdict(comparison)}.", width=columns),
        f"A: {comparison.steps[0]:,} measured steps, B: {comparison.steps[1]:,}",
        *[f"  {line}" for line in aligned([HEADERS, *map(_row, comparison.metrics)], right=range(1, 5))],
    ]
    for name, reason in comparison.not_compared.items():
        lines += wrapped(f"no verdict on {name}: {clean(reason, SENTENCE)}", width=min(columns, COLUMNS - INDENT))
    if comparison.differences:
        lines.append("differences")
        lines += [f"  {clean(name)}: {clean(a)} -> {clean(b)}" for name, (a, b) in comparison.differences.items()]
    return "\n".join(lines)


def markdown(comparison: Comparison) -> str:
    """Render a comparison for a pull request, as a code block.

    A value from a journal can't end the block: each line begins with words of this package.
    """
    return f"```text\n{text(comparison)}\n```"


def values(comparison: Comparison, fail_over: float) -> dict[str, Any]:
    """Return a comparison as values for JSON. Changes are ratios: 0.1 is 10 % more."""
    return {
        "verdict": verdict(comparison),
        "regression": comparison.regression,
        "decided_by": None if comparison.decided_by is None else comparison.decided_by.name,
        "fail_over": fail_over,
        "steps": comparison.steps,
        "metrics": [
            {
                "metric": one.name,
                "a": one.a,
                "b": one.b,
                **dict(zip(Change._fields, one.change or (None, None, None), strict=True)),
                "verdict": one.verdict,
            }
            for one in comparison.metrics
        ],
        "not_compared": dict(comparison.not_compared),
        "differences": {name: {"a": a, "b": b} for name, (a, b) in comparison.differences.items()},
    }


def _row(metric: ComparedMetric) -> tuple[str, ...]:
    moved = metric.change
    exact = moved is not None and moved.low == moved.high
    return (
        metric.name,
        _shown(metric.name, metric.a),
        _shown(metric.name, metric.b),
        DASH if moved is None else _percent(moved.change),
        DASH if moved is None or exact else _interval(moved),
        metric.verdict or "",
    )


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return DASH
    if name.endswith("_time"):
        return duration(value)
    if name.endswith("_gb"):
        return size(value)
    if name == "tflops":
        return speed(value * TERA)
    return f"{100 * value:.3g}%" if name in {"mfu", "hfu"} else rate(value)


def _percent(change: float) -> str:
    return f"{100 * change:+.1f} %"


def _interval(change: Change) -> str:
    return f"{_percent(change.low)} to {_percent(change.high)}"
