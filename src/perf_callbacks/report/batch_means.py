"""Confidence intervals for ratios of sums, for the time of quick steps, and for changes between runs.

Slow steps often come in a row, so an interval that assumes independent steps is too narrow. Batch means cut the steps
into a few long batches, whose means hardly depend on each other.
"""

import math
from collections.abc import Sequence
from itertools import islice, pairwise
from statistics import NormalDist, pvariance
from typing import NamedTuple

BATCHES = 16
"""Fewer in a run of fewer than 32 steps."""

FEWEST_BATCHES = 5
"""For an estimate. Each batch has at least two steps."""

CONFIDENCE = 0.99
"""At a smaller confidence, `perf-callbacks compare` would report too many changes by chance alone."""

QUANTILE = 0.05
"""The time of a quick step is this quantile of all step times."""

QUICK_BATCHES = 6
"""The jackknife leaves out one batch at a time. More batches would make the intervals too narrow."""

FEWEST_QUICK = 120


class Estimate(NamedTuple):
    """An estimated value with its standard error."""

    value: float
    error: float
    """Standard error of the logarithm of `value`."""
    batches: int


class Change(NamedTuple):
    """Relative change between two sides: 0.1 means 10 % more."""

    change: float
    low: float
    """With the confidence `CONFIDENCE`, unless the caller passes another."""
    high: float


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Estimate `sum(above) / sum(below)`. None means too few steps, or a sum that is not positive.

    >>> ratio([3.0] * 40, [2.0] * 40)
    Estimate(value=1.5, error=0.0, batches=16)
    """
    batches = min(BATCHES, len(below) // 2)
    total, per = math.fsum(above), math.fsum(below)
    if batches < FEWEST_BATCHES or total <= 0 or per <= 0:
        return None
    cuts = [len(below) * number // batches for number in range(batches + 1)]
    residuals = [
        math.fsum(above[start:stop]) / total - math.fsum(below[start:stop]) / per for start, stop in pairwise(cuts)
    ]
    squares = math.fsum([residual * residual for residual in residuals])
    return Estimate(total / per, math.sqrt(squares * batches / (batches - 1)), batches)


def quick(times: Sequence[float]) -> Estimate | None:
    """A low quantile of the step times, which other work on the machine hardly affects.

    The error comes from the jackknife: how far the quantile moves if one batch is left out. The quantiles of single
    batches would give a wrong error, because a slow phase of the machine may fill a batch.

    >>> quick([2.0, 9.0] * 60)
    Estimate(value=2.0, error=0.0, batches=6)
    """
    if len(times) < FEWEST_QUICK or min(times) <= 0:
        return None
    order = sorted(range(len(times)), key=times.__getitem__)

    def without(start: int, stop: int) -> float:
        kept = (place for place in order if not start <= place < stop)
        return times[next(islice(kept, int(QUANTILE * (len(times) - stop + start)), None))]

    cuts = [len(times) * number // QUICK_BATCHES for number in range(QUICK_BATCHES + 1)]
    logs = [math.log(without(start, stop)) for start, stop in pairwise(cuts)]
    return Estimate(without(0, 0), math.sqrt((QUICK_BATCHES - 1) * pvariance(logs)), QUICK_BATCHES)


def ratio_from_zero(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """As `ratio`, but the first sum may be 0, and `error` is the standard error of the ratio itself.

    >>> ratio_from_zero([0.0] * 40, [2.0] * 40)
    Estimate(value=0.0, error=0.0, batches=16)
    """
    estimate = ratio(above if any(above) else below, below)
    if estimate is None:
        return None
    return estimate._replace(error=estimate.value * estimate.error) if any(above) else estimate._replace(value=0.0)


def mean_of_runs(runs: Sequence[Estimate]) -> float | None:
    if len(runs) == 1:
        return runs[0].value
    return math.exp(math.fsum([math.log(run.value) for run in runs]) / len(runs)) if runs else None


def change_between_runs(
    before: Sequence[Estimate], after: Sequence[Estimate], confidence: float = CONFIDENCE
) -> Change:
    """With several runs on a side: Student's t-test on the logarithms of the runs' values, for equally noisy sides.

    With one run on each side: Welch's t-test.

    >>> [round(end, 2) for end in change_between_runs(*[[Estimate(one, 0.0, 16) for one in (1.0, 1.02, 0.98)]] * 2)]
    [0.0, -0.07, 0.08]
    """
    first = before[0].value  # so that the change of a single run is exact
    logs = [[run._replace(value=math.log(run.value / first)) for run in side] for side in (before, after)]
    return Change(*map(math.expm1, difference_between_runs(logs[0], logs[1], confidence)))


def difference_between_runs(
    before: Sequence[Estimate], after: Sequence[Estimate], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """As `change_between_runs`, but the second side's mean minus the first side's.

    >>> difference_between_runs([Estimate(2.0, 0.0, 16)], [Estimate(5.0, 0.0, 16)])
    (3.0, 3.0, 3.0)
    """
    values = [[run.value for run in side] for side in (before, after)]
    means = [math.fsum(side) / len(side) for side in values]
    if len(before) == len(after) == 1:
        parts = [(run.error**2, run.batches - 1) for run in (before[0], after[0])]
        variance = sum([each for each, _ in parts])
        freedom = variance**2 / sum([each**2 / free for each, free in parts]) if variance else 1.0
    else:
        freedom = len(before) + len(after) - 2
        squares = math.fsum([(value - mean) ** 2 for side, mean in zip(values, means, strict=True) for value in side])
        variance = squares / freedom * (1 / len(before) + 1 / len(after))
    width = _quantile(freedom, confidence) * math.sqrt(variance)
    moved = means[1] - means[0]
    return moved, moved - width, moved + width


_FEW = {0.99: {1: 63.657, 2: 9.925, 3: 5.841}, 0.95: {1: 12.706, 2: 4.303, 3: 3.182}}
"""Exact quantiles of Student's t for 1, 2 and 3 degrees of freedom."""


def _quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t, by expansion around the normal quantile.

    With 4 degrees of freedom, it is 1 % too small. With 10, the error is negligible.
    """
    few = _FEW[confidence]
    if freedom in few:
        return few[int(freedom)]
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
