"""Comparison of recorded runs, metric by metric: the change, its confidence interval, and a verdict."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from perf_callbacks.kernel.records.shares import MAJORITY
from perf_callbacks.report import comparability, machine_load
from perf_callbacks.report.batch_means import Change, Estimate, change_between_runs, mean_of_runs
from perf_callbacks.report.comparability import Values, distinct, listed
from perf_callbacks.report.compared_run import ESTIMATORS, QUICK, ComparedRun
from perf_callbacks.report.history import Attempt
from perf_callbacks.report.machine_load import Load
from perf_callbacks.report.units import speed

WORSE, BETTER, SAME, UNDECIDED = "worse", "better", "same", "undecided"

DECIDING = ("tokens/s", "samples/s", "step_time")
"""In this order, as far as they have a verdict."""

Ranks = Sequence[Attempt]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedMetric:
    """Values on side A and on side B."""

    name: str
    a: float | None
    b: float | None
    change: Change | None = None
    """None also if a side has too few steps, or A and B are not comparable."""
    verdict: str | None = None
    """"worse", "better", "same", or "undecided": the change may be zero, but may also be as large as the threshold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A side has one run or several."""

    metrics: tuple[ComparedMetric, ...]
    decided_by: ComparedMetric | None
    unlike: Values
    """Properties, such as the batch, whose difference makes a verdict impossible."""
    busier: str | None
    """Side whose machine was so busy that the load may explain the result."""
    not_compared: Mapping[str, str]
    differences: Values
    steps: tuple[int, int]
    runs: tuple[int, int]
    left_out: tuple[int, int]
    """Runs of each side that were left out because the machine was busy."""
    loads: tuple[Sequence[Load], Sequence[Load]]
    """Of each run, also those that were left out."""
    fail_over: float
    """Threshold for the relative change of a time: 0.05 means 5 %."""

    @property
    def regression(self) -> bool:
        """The deciding metric is worse by at least the threshold, and chance doesn't explain the change."""
        return self.decided_by is not None and self.decided_by.verdict == WORSE

    @property
    def several(self) -> bool:
        return max(self.runs) > 1


def compare(first: Sequence[Ranks], second: Sequence[Ranks], *, fail_over: float) -> Comparison:
    """Compare the old runs with the new runs. The change of a rate is converted to that of the step time.

    Raise `ArithmeticError` or `ValueError` if a figure can't be computed from a journal's values, or isn't finite.
    """
    every = [[ComparedRun.from_ranks(ranks) for ranks in side] for side in (first, second)]
    loads = ([run.load for run in every[0]], [run.load for run in every[1]])
    chosen = machine_load.undisturbed(loads)
    a, b = [[side[place] for place in places] for side, places in zip(every, chosen, strict=True)]
    metrics = [_metric(name, a, b, fail_over) for name in ESTIMATORS]
    names = [metric.name for metric in metrics if metric.a is not None and metric.b is not None]
    not_compared = {name: reason for name in names if (reason := _incomparable(name, a, b)) is not None}
    metrics = [
        replace(metric, change=None, verdict=None) if metric.name in not_compared else metric for metric in metrics
    ]
    sizes = [_size(name, a, b, fail_over) for name in distinct(name for run in [*a, *b] for name in run.memory)]
    metrics += [metric for metric in sizes if metric.verdict != SAME or metric.name in {"peak_gb", "resident_gb"}]
    shown = [metric for metric in metrics if metric.a is not None or metric.b is not None]
    _check(shown)
    by_name = {metric.name: metric for metric in shown if metric.verdict is not None}
    decided_by = _decider([by_name[name] for name in (*DECIDING, QUICK) if name in by_name])
    unlike = comparability.differences(a, b)
    effect = machine_load.effect([run.load for run in a], [run.load for run in b])
    busier = None
    if decided_by is not None and not unlike and _explained(decided_by, effect, fail_over):
        busier = "A" if effect < 0 else "B"
    if unlike or busier:
        decided_by = None
        shown = [replace(metric, verdict=None) if unlike or metric.name in ESTIMATORS else metric for metric in shown]
    return Comparison(
        metrics=tuple(shown),
        decided_by=decided_by,
        unlike=unlike,
        busier=busier,
        not_compared=not_compared,
        differences=dict(_differences(a, b)),
        steps=(sum([run.steps for run in a]), sum([run.steps for run in b])),
        runs=(len(a), len(b)),
        left_out=(len(every[0]) - len(a), len(every[1]) - len(b)),
        loads=loads,
        fail_over=fail_over,
    )


def _check(metrics: Sequence[ComparedMetric]) -> None:
    figures = [
        figure for metric in metrics for figure in (metric.a, metric.b, *(metric.change or ())) if figure is not None
    ]
    if not all(map(math.isfinite, figures)):
        raise ArithmeticError("not finite")


def _decider(known_metrics: Sequence[ComparedMetric]) -> ComparedMetric | None:
    """Usually the first metric. On a busy machine, only quick steps may show a change.

    So they decide if they became slower and the first metric's verdict is "same" or "undecided".
    """
    if not known_metrics:
        return None
    throughput, last = known_metrics[0], known_metrics[-1]
    silent = throughput.verdict in {SAME, UNDECIDED} and last.name == QUICK
    return last if silent and last.verdict == WORSE else throughput


def _explained(metric: ComparedMetric, effect: float, threshold: float) -> bool:
    if metric.change is None or metric.verdict in {None, UNDECIDED}:
        return False
    longer = math.log1p(metric.change.change) * (1 if _is_cost(metric.name) else -1)
    if metric.verdict == SAME:
        return abs(effect) >= MAJORITY * math.log1p(threshold) > 0
    return longer * effect > 0 and abs(effect) >= MAJORITY * abs(longer)


def _metric(name: str, a: Sequence[ComparedRun], b: Sequence[ComparedRun], threshold: float) -> ComparedMetric:
    before, after = [[estimate for estimate in map(ESTIMATORS[name], side) if estimate is not None] for side in (a, b)]
    return _compared(name, before, after, threshold)


def _size(name: str, a: Sequence[ComparedRun], b: Sequence[ComparedRun], threshold: float) -> ComparedMetric:
    """A single measurement per run gives no interval for one run against one run."""
    sizes = [[size for run in side if (size := run.memory.get(name)) is not None] for side in (a, b)]
    if not all(sizes) or not all([size for side in sizes for size in side]):
        before, after = [fmean(side) if side else None for side in sizes]
        return ComparedMetric(name=name, a=before, b=after)
    single = [[Estimate(size, 0.0, 2) for size in side] for side in sizes]
    return _compared(name, single[0], single[1], threshold)


def _compared(name: str, a: Sequence[Estimate], b: Sequence[Estimate], threshold: float) -> ComparedMetric:
    before, after = mean_of_runs(a), mean_of_runs(b)
    if before is None or after is None:
        return ComparedMetric(name=name, a=before, b=after)
    changed = change_between_runs(a, b)
    return ComparedMetric(name=name, a=before, b=after, change=changed, verdict=_verdict(name, changed, threshold))


def _verdict(name: str, changed: Change, threshold: float) -> str:
    least, low, moved, high = map(math.log1p, (threshold, changed.low, changed.change, changed.high))
    chance, small = low <= 0 <= high, -least < low and high < least
    if not chance and abs(moved) >= least:  # 10 % more time and 9.1 % less throughput are the same
        return WORSE if (moved > 0) == _is_cost(name) else BETTER
    return UNDECIDED if chance and not small else SAME


def _is_cost(name: str) -> bool:
    return name.endswith(("_time", "_gb"))


def _incomparable(name: str, a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> str | None:
    if name.endswith("_time"):
        others = [what for what in ("samples", "tokens") if comparability.per_step(what, a, b) is not None]
        if others:
            return f"steps have different numbers of {others[0]} in A and in B"
    pairs = [*((a[0], other) for other in b), *((other, b[0]) for other in a[1:])]
    return next((reason for pair in pairs if (reason := _other_meaning(name, *pair)) is not None), None)


def _other_meaning(name: str, a: ComparedRun, b: ComparedRun) -> str | None:
    if a.run.timeline != b.run.timeline:
        return f"A was timed by the {a.run.timeline}, B by the {b.run.timeline}"
    if name not in {"tflops", "mfu", "hfu"}:
        return None
    if a.summary is None or b.summary is None:
        return f"{'A' if a.summary is None else 'B'} has no summary, which names the source of FLOPs and the peak"
    for field_name, noun in CONVENTIONS.items() if name != "tflops" else [*CONVENTIONS.items()][:2]:
        before, after = getattr(a.flops, field_name, None), getattr(b.flops, field_name, None)
        if before != after:
            return f"{noun}: {_said(before)} in A, {_said(after)} in B"
    return None


CONVENTIONS = {
    "source": "FLOPs come from different sources",
    "lower_bound": "FLOPs are a lower bound in one of them",
    "dtype": "the peaks are of different number formats",
    "peak_measured": "one peak is measured and one is not",
    "peak_flops_per_second": "the peaks differ",
}
"""Fields of `FlopsSummary` that must agree for MFU; for TFLOPS, only "source" and "lower_bound"."""


def _said(value: object) -> str:
    return speed(value, 4) if isinstance(value, float) else str(value)


def _differences(a: Sequence[ComparedRun], b: Sequence[ComparedRun]) -> Iterable[tuple[str, tuple[Any, Any]]]:
    for name in ("model", "parameters", "batch", "device", "devices", "world_size", "door", "timeline", "host"):
        yield from _differ(name, [[getattr(run.run, name) for run in side] for side in (a, b)])
    for prefix, before, after in (
        ("", [run.run.versions for run in a], [run.run.versions for run in b]),
        ("", [run.run.config for run in a], [run.run.config for run in b]),
        ("checklist: ", [run.checklist for run in a], [run.checklist for run in b]),
    ):
        for name in distinct(name for values in [*before, *after] for name in values):
            if name != "output_dir":
                sides = [[values.get(name) for values in side] for side in (before, after)]
                yield from _differ(prefix + name, sides)
    for name in ("samples", "tokens"):
        sizes = comparability.per_step(name, a, b)
        if sizes is not None:
            yield f"{name} per step", sizes


def _differ(name: str, sides: Sequence[Sequence[Any]]) -> Iterable[tuple[str, tuple[Any, Any]]]:
    before, after = [distinct(side) for side in sides]
    if len(before) != len(after) or any([value not in after for value in before]):
        yield name, (listed(before), listed(after))
