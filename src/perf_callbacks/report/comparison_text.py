"""A comparison of runs as text, as Markdown for a pull request, and as values for JSON."""

import re
from typing import Any

from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.kernel.units import TERA
from perf_callbacks.report import machine_load
from perf_callbacks.report.batch_means import Change
from perf_callbacks.report.comparability import Values
from perf_callbacks.report.comparison import BETTER, DECIDING, SAME, UNDECIDED, WORSE, ComparedMetric, Comparison
from perf_callbacks.report.layout import COLUMNS, INDENT, aligned, clean, wrapped
from perf_callbacks.report.units import DASH, duration, rate, size, speed

SENTENCES = {
    WORSE: "B is slower",
    BETTER: "B is faster",
    SAME: "No regression",
    UNDECIDED: "Undecided, run more steps",
}

UNDECIDED_RUNS = "Undecided, make more runs"

HEADERS = ("metric", "A", "B", "change", "99 % interval", "")

ONE_RUN = (
    "One run on each side: the interval covers what varies within the runs, not what differs between runs. For that, "
    "compare several: --base A1 A2 A3 --new B1 B2 B3."
)


def verdict(comparison: Comparison) -> str:
    metric = comparison.decided_by
    if comparison.unlike:
        return not_alike(comparison.unlike)
    if comparison.busier is not None:
        doubt = "may explain the difference" if _differs(comparison) else "may hide a difference"
        return f"Not decided: the machine was busier during {comparison.busier}, which {doubt}"
    if metric is None or metric.change is None or metric.verdict is None:
        reason = next((comparison.not_compared[name] for name in DECIDING if name in comparison.not_compared), None)
        if reason is not None:
            return f"Not decided: {clean(reason, LONGEST_TEXT)}"
        return "Not decided: one of the runs has fewer than ten measured steps"
    detail = f"{metric.name} changed by {_percent(metric.change.change)} ({_interval(metric.change)})"
    return f"{_sentence(comparison, metric, metric.change)}: {detail}"


def not_alike(unlike: Values) -> str:
    changes = [f"{clean(name)} {clean(a)} -> {clean(b)}" for name, (a, b) in unlike.items()]
    return f"Not decided: the runs are not alike: {', '.join(changes)}"


def _sentence(comparison: Comparison, metric: ComparedMetric, change: Change) -> str:
    """With several runs on a side, a change below the threshold is mentioned if chance can't explain it."""
    if comparison.several and metric.verdict == SAME and not change.low <= 0 <= change.high:
        slower = (change.change > 0) == metric.name.endswith("_time")
        return f"B is {'slower' if slower else 'faster'}, below the threshold of {100 * comparison.fail_over:g} %"
    if comparison.several and metric.verdict == UNDECIDED:
        return UNDECIDED_RUNS
    return SENTENCES[metric.verdict or SAME]


def _differs(comparison: Comparison) -> bool:
    changes = {metric.name: metric.change for metric in comparison.metrics if metric.change is not None}
    change = next((changes[name] for name in DECIDING if name in changes), None)
    return change is not None and not change.low <= 0 <= change.high


def text(comparison: Comparison, columns: int = COLUMNS) -> str:
    lines = wrapped(f"{verdict(comparison)}.", width=columns)
    if not comparison.several and comparison.decided_by is not None:
        lines += wrapped(ONE_RUN, width=columns)
    lines += wrapped(f"{_steps(comparison, 0)}, {_steps(comparison, 1)}", width=columns)
    lines += _load(comparison, columns)
    lines += [f"  {line}" for line in aligned([HEADERS, *map(row, comparison.metrics)], right=range(1, 5))]
    reasons: dict[str, list[str]] = {}
    for name, reason in comparison.not_compared.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        sentence = f"no verdict on {', '.join(names)}: {clean(reason, LONGEST_TEXT)}"
        lines += wrapped(sentence, width=min(columns, COLUMNS - INDENT))
    if comparison.differences:
        lines.append("differences")
        lines += [f"  {clean(name)}: {clean(a)} -> {clean(b)}" for name, (a, b) in comparison.differences.items()]
    return "\n".join(lines)


def _steps(comparison: Comparison, side: int) -> str:
    name, steps, runs = "AB"[side], comparison.steps[side], comparison.runs[side]
    if not comparison.several:
        return f"{name}: {steps:,} measured steps" if side == 0 else f"{name}: {steps:,}"
    sentence = f"{name}: {steps:,} measured steps of {runs} run{'s' if runs > 1 else ''}"
    left_out = comparison.left_out[side]
    return f"{sentence} ({left_out} left out, because the machine was busy)" if left_out else sentence


def _load(comparison: Comparison, columns: int) -> list[str]:
    loads = [machine_load.described(side) for side in comparison.loads]
    if not any(loads):
        return []
    lines = [f"{name}: {load or 'unknown'}" for name, load in zip("AB", loads, strict=True)]
    return ["load of the machine", *[f"  {part}" for line in lines for part in wrapped(line, width=columns - INDENT)]]


def markdown(comparison: Comparison) -> str:
    """Render a code block for a pull request.

    The fence has more backticks than any row of backticks in the text, so no value from a journal ends the block.
    """
    rendered = text(comparison)
    fence = "`" * max([3, *[len(run) + 1 for run in re.findall("`+", rendered)]])
    return f"{fence}text\n{rendered}\n{fence}"


def values(comparison: Comparison) -> dict[str, Any]:
    """For JSON. Changes are relative: 0.1 means 10 % more."""
    return {
        "verdict": verdict(comparison),
        "regression": comparison.regression,
        "decided_by": None if comparison.decided_by is None else comparison.decided_by.name,
        "fail_over": comparison.fail_over,
        "runs": comparison.runs,
        "left_out": comparison.left_out,
        "steps": comparison.steps,
        "unlike": {name: {"a": a, "b": b} for name, (a, b) in comparison.unlike.items()},
        "busier": comparison.busier,
        "load": {name: [load._asdict() for load in side] for name, side in zip("ab", comparison.loads, strict=True)},
        "metrics": [
            {
                "metric": metric.name,
                "a": metric.a,
                "b": metric.b,
                **dict(zip(Change._fields, metric.change or (None, None, None), strict=True)),
                "verdict": metric.verdict,
            }
            for metric in comparison.metrics
        ],
        "not_compared": dict(comparison.not_compared),
        "differences": {name: {"a": a, "b": b} for name, (a, b) in comparison.differences.items()},
    }


def row(metric: ComparedMetric) -> tuple[str, ...]:
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
