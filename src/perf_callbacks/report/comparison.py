"""Comparison of two recorded runs, metric by metric: the change, its confidence interval, and a verdict."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean
from typing import Any

from perf_callbacks.flops.peaks.peak_rates import TERA
from perf_callbacks.kernel.records.fit_records import Checklist, Run, Summary
from perf_callbacks.kernel.records.machine_records import Memory, Use
from perf_callbacks.kernel.records.summary_parts import FlopsSummary
from perf_callbacks.memory.use import known
from perf_callbacks.report.batch_means import Change, Estimate, change, quick, ratio
from perf_callbacks.report.history import STEP_COLUMNS, Attempt, possible
from perf_callbacks.report.series import STAGES, included
from perf_callbacks.report.units import speed

WORSE, BETTER, SAME, UNDECIDED = "worse", "better", "same", "undecided"

DECIDING = ("tokens/s", "samples/s", "step_time")
"""Metrics that decide about a regression: the first with a value in both runs. `_decider` has an exception."""

QUICK = "quick_step_time"

SAME_AMOUNT = 0.01
"""Amounts per step count as equal up to this relative difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedMetric:
    """A metric in both runs. None: unknown, or not comparable."""

    name: str
    a: float | None
    b: float | None
    change: Change | None = None
    """None: too few steps in a run."""
    verdict: str | None = None
    """Worse, better, same or undecided. Undecided: the change may reach the threshold, and may be chance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All differences between two runs."""

    metrics: tuple[ComparedMetric, ...]
    decided_by: ComparedMetric | None
    """The metric that decides. None: no metric has enough steps in both runs."""
    not_compared: Mapping[str, str]
    """By metric, the reason why there is no verdict."""
    differences: Mapping[str, tuple[Any, Any]]
    """Values of configuration and environment that differ."""
    steps: tuple[int, int]
    """Steps that were compared."""

    @property
    def regression(self) -> bool:
        """True if the deciding metric is worse by more than the threshold, and chance doesn't explain the change."""
        return self.decided_by is not None and self.decided_by.verdict == WORSE


@dataclass(frozen=True, slots=True)
class Side:
    """A run: the included steps of all ranks as columns, and the records that describe the run."""

    columns: Mapping[str, Sequence[float]]
    """The values of each step. NaN: unknown."""
    run: Run
    summary: Summary | None
    checklist: Mapping[str, str]
    memory: Mapping[str, float]

    @classmethod
    def of(cls, ranks: Sequence[Attempt]) -> "Side":
        """Read a run. Rank 0 describes the run."""
        first = ranks[0]
        parts = [part for part in (rank.last(Memory) for rank in ranks) if part is not None]
        uses = [use.resident_gb for rank in ranks for use in rank.of(Use)]
        used = [size for size in uses if size is not None and possible(size)]
        memory = {f"{name}_gb": size for part in parts[:1] for name, size in known(part).items() if possible(size)}
        memory |= {"resident_gb": max(used)} if used else {}
        return cls(
            columns=_columns(ranks),
            run=first.run,
            summary=first.last(Summary),
            checklist={record.item: record.status for record in first.of(Checklist)},
            memory=memory,
        )

    def estimate(self, above: str | None, below: str | None) -> Estimate | None:
        """Estimate the ratio of two columns, over the steps with both values. None stands for a column of ones."""
        ones = [1.0] * len(self.columns["step_time"])
        columns = [ones if name is None else self.columns[name] for name in (above, below)]
        rows = [(one, other) for one, other in zip(*columns, strict=True) if not isnan(one + other)]
        return ratio([one for one, _ in rows], [other for _, other in rows])


def compare(first: Sequence[Attempt], second: Sequence[Attempt], *, fail_over: float) -> Comparison:
    """Compare two runs. Each run is given as one attempt per rank.

    Args:
        first: The old run.
        second: The new run.
        fail_over: Least relative change by which a time is worse or better; 0.05 is 5 %. A rate is worse or better if
            steps take longer or shorter by this share.

    Raise `ArithmeticError` or `ValueError` if the values of a journal yield no figure.
    """
    a, b = Side.of(first), Side.of(second)
    metrics = [_metric(name, a, b, fail_over) for name in ESTIMATORS]
    not_compared = {}
    for place, metric in enumerate(metrics):
        reason = _incomparable(metric.name, a, b)
        if reason is not None and metric.a is not None and metric.b is not None:
            not_compared[metric.name] = reason
            metrics[place] = ComparedMetric(name=metric.name, a=metric.a, b=metric.b)
    sizes = [_size(name, a, b, fail_over) for name in {**a.memory, **b.memory}]
    metrics += [one for one in sizes if one.verdict != SAME or one.name in {"peak_gb", "resident_gb"}]
    shown = [one for one in metrics if one.a is not None or one.b is not None]
    _check(shown)
    by_name = {one.name: one for one in shown if one.verdict is not None}
    return Comparison(
        metrics=tuple(shown),
        decided_by=_decider([by_name[name] for name in (*DECIDING, QUICK) if name in by_name]),
        not_compared=not_compared,
        differences=dict(_differences(a, b)),
        steps=(len(a.columns["step_time"]), len(b.columns["step_time"])),
    )


def _check(metrics: Sequence[ComparedMetric]) -> None:
    """Raise `ArithmeticError` for a figure that is NaN or infinite."""
    figures = [figure for one in metrics for figure in (one.a, one.b, *(one.change or ())) if figure is not None]
    if not all(map(math.isfinite, figures)):
        raise ArithmeticError("not finite")


def _decider(known_metrics: Sequence[ComparedMetric]) -> ComparedMetric | None:
    """Return the metric that decides: throughput, or quick steps if only quick steps show a regression.

    On a machine with other work, throughput may be too uncertain to show a change that quick steps show.
    """
    if not known_metrics:
        return None
    throughput, last = known_metrics[0], known_metrics[-1]
    silent = throughput.verdict in {SAME, UNDECIDED} and last.name == QUICK
    return last if silent and last.verdict == WORSE else throughput


Estimator = Callable[[Side], Estimate | None]


def _rate(column: str) -> Estimator:
    return lambda side: side.estimate(column, "step_time")


def _time(column: str) -> Estimator:
    return lambda side: side.estimate(column, None)


def _scaled(found: Estimate | None, factor: float | None) -> Estimate | None:
    return None if found is None or not factor else found._replace(value=found.value * factor)


def _tflops(side: Side) -> Estimate | None:
    return _scaled(side.estimate("model_flops", "step_time"), 1 / TERA)


def _flops(side: Side) -> FlopsSummary | None:
    return None if side.summary is None else side.summary.flops


def _of_peak(share: Callable[[FlopsSummary], float | None]) -> Estimator:
    """Return the estimator of MFU or HFU: the summary's share, scaled by the FLOPs of the steps."""

    def estimate(side: Side) -> Estimate | None:
        flops, found = _flops(side), _tflops(side)
        if flops is None or found is None:
            return None
        value = share(flops)
        if not value or not flops.model_flops or not flops.seconds:
            return None
        return _scaled(found, value / (flops.model_flops / flops.seconds / TERA))

    return estimate


ESTIMATORS: Mapping[str, Estimator] = {
    "step_time": _time("step_time"),
    QUICK: lambda side: quick(side.columns["step_time"]),
    "samples/s": _rate("samples"),
    "tokens/s": _rate("tokens"),
    "tflops": _tflops,
    "mfu": _of_peak(lambda flops: flops.mfu),
    "hfu": _of_peak(lambda flops: flops.hfu),
    **{name: _time(name) for name in STAGES},
}
"""By name of a metric of steps, its estimator. Rates are per rank."""


def _metric(name: str, a: Side, b: Side, threshold: float) -> ComparedMetric:
    before, after = ESTIMATORS[name](a), ESTIMATORS[name](b)
    if before is None or after is None:
        return ComparedMetric(name=name, a=before and before.value, b=after and after.value)
    changed = change(before, after)
    return ComparedMetric(
        name=name, a=before.value, b=after.value, change=changed, verdict=_verdict(name, changed, threshold)
    )


def _verdict(name: str, changed: Change, threshold: float) -> str:
    least, low, moved, high = map(math.log1p, (threshold, changed.low, changed.change, changed.high))
    chance, small = low <= 0 <= high, -least < low and high < least
    if not chance and abs(moved) >= least:  # 10 % more time and 9.1 % less throughput are the same
        return WORSE if (moved > 0) == name.endswith(("_time", "_gb")) else BETTER
    return UNDECIDED if chance and not small else SAME


def _size(name: str, a: Side, b: Side, threshold: float) -> ComparedMetric:
    """Compare an amount of memory, a single measurement without an interval."""
    before, after = a.memory.get(name), b.memory.get(name)
    if not before or not after:
        return ComparedMetric(name=name, a=before, b=after)
    more = after / before - 1
    changed = Change(more, more, more)
    return ComparedMetric(name=name, a=before, b=after, change=changed, verdict=_verdict(name, changed, threshold))


def _incomparable(name: str, a: Side, b: Side) -> str | None:
    """Return the reason why a metric means different things in the two runs. None: it means the same."""
    if a.run.timeline != b.run.timeline:
        return f"A was timed by the {a.run.timeline}, B by the {b.run.timeline}"
    if name.endswith("_time"):
        others = [what for what in ("samples", "tokens") if _other(what, a, b) is not None]
        return f"steps have different numbers of {others[0]} in A and in B" if others else None
    if name not in {"tflops", "mfu", "hfu"}:
        return None
    of_a, of_b = _flops(a), _flops(b)
    if a.summary is None or b.summary is None:
        return f"{'A' if a.summary is None else 'B'} has no summary, which names the source of FLOPs and the peak"
    for field_name, noun in CONVENTIONS.items() if name != "tflops" else [*CONVENTIONS.items()][:2]:
        one, other = getattr(of_a, field_name, None), getattr(of_b, field_name, None)
        if one != other:
            return f"{noun}: {_said(one)} in A, {_said(other)} in B"
    return None


CONVENTIONS = {
    "source": "FLOPs come from different sources",
    "lower_bound": "FLOPs are a lower bound in one of them",
    "dtype": "the peaks are of different number formats",
    "peak_measured": "one peak is measured and one is not",
    "peak_flops_per_second": "the peaks differ",
}
"""Fields of `FlopsSummary` that must agree for a comparison of MFU. The first two must also agree for TFLOPS."""


def _said(value: object) -> str:
    return speed(value, 4) if isinstance(value, float) else str(value)


def _differences(a: Side, b: Side) -> Iterable[tuple[str, tuple[Any, Any]]]:
    """Yield the values of configuration and environment that differ."""
    for name in ("device", "world_size", "door", "timeline"):
        yield from _differ(name, getattr(a.run, name), getattr(b.run, name))
    for prefix, one, other in (
        ("", a.run.versions, b.run.versions),
        ("", a.run.config, b.run.config),
        ("checklist: ", a.checklist, b.checklist),
    ):
        for name in {**one, **other}:
            if name != "output_dir":
                yield from _differ(prefix + name, one.get(name), other.get(name))
    for name in ("samples", "tokens"):
        sizes = _other(name, a, b)
        if sizes is not None:
            yield f"{name} per step", sizes


def _other(name: str, a: Side, b: Side) -> tuple[float, float] | None:
    """Return the mean amounts per step of both runs. None: the amounts are equal, or an amount is unknown."""
    one, other = _mean(a.columns[name]), _mean(b.columns[name])
    if one is None or other is None or abs(one - other) <= SAME_AMOUNT * max(one, other):
        return None
    return one, other


def _differ(name: str, one: Any, other: Any) -> Iterable[tuple[str, tuple[Any, Any]]]:
    if one != other:
        yield name, (one, other)


def _mean(column: Sequence[float]) -> float | None:
    values = [value for value in column if not isnan(value)]
    return fmean(values) if values else None


def _columns(ranks: Sequence[Attempt]) -> dict[str, list[float]]:
    """Return the included steps of a run. With several ranks, a step takes as long as on the slowest rank."""
    places = [{rank.step[place]: place for place in included(rank, 0, len(rank.step))} for rank in ranks]
    common = [step for step in places[0] if all([step in others for others in places[1:]])]
    found = {}
    for name in STEP_COLUMNS:
        values = [
            [rank.columns[name][where[step]] for step in common] for rank, where in zip(ranks, places, strict=True)
        ]
        together = max if name == "step_time" else fmean
        found[name] = values[0] if len(ranks) == 1 else [*map(together, zip(*values, strict=True))]
    return found
