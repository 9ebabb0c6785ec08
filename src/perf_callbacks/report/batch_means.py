"""Confidence intervals for ratios of sums, for the time of quick steps, and for changes between runs.

Slow steps often come in a row, so an interval that assumes independent steps is too narrow. The method of batch means
cuts the steps into a few long batches. The means of long batches hardly depend on each other.
"""

import math
from collections.abc import Sequence
from itertools import islice, pairwise
from statistics import NormalDist, pvariance
from typing import NamedTuple

BATCHES = 16
"""Most batches of a run. A run of fewer than 32 steps has fewer batches."""

FEWEST_BATCHES = 5
"""Fewest batches, of two steps or more, for an estimate."""

CONFIDENCE = 0.99
"""Share of intervals that contain the true value. With a smaller share, chance would fail too many builds."""

QUANTILE = 0.05
"""Share of the steps that are shorter than a quick step."""

QUICK_BATCHES = 6
"""Number of batches that the jackknife leaves out in turn. With more batches, the intervals are too narrow."""

FEWEST_QUICK = 120
"""Fewest steps for an estimate of quick steps."""


class Estimate(NamedTuple):
    """A ratio of sums with its standard error."""

    value: float
    error: float
    """Standard error of the logarithm of `value`."""
    batches: int


class Change(NamedTuple):
    """Relative change between two sides, each of one run or several: 0.1 is 10 % more."""

    change: float
    low: float
    """Lower end of the interval. Its confidence is `CONFIDENCE`, unless the caller passes another value."""
    high: float


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Estimate the ratio of the sums of two columns. None: too few steps, or a sum that is not positive.

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
    """Estimate the time of a quick step, a low quantile of all steps. None: too few steps.

    Other work on a machine makes some steps longer, but hardly affects quick steps. The jackknife gives the error: the
    distance by which the quantile moves if a batch is left out. The quantiles of single batches would give a wrong
    error, since a slow phase of the machine may fill a batch.

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
    """Estimate a ratio of sums that may be 0. The error is that of the ratio, not of its logarithm.

    >>> ratio_from_zero([0.0] * 40, [2.0] * 40)
    Estimate(value=0.0, error=0.0, batches=16)
    """
    found = ratio(above if any(above) else below, below)
    if found is None:
        return None
    return found._replace(error=found.value * found.error) if any(above) else found._replace(value=0.0)


def change(before: Estimate, after: Estimate) -> Change:
    """Return the change of an estimate, with the interval of Welch's test on logarithms."""
    return change_between_runs([before], [after])


def mean_of_runs(runs: Sequence[Estimate]) -> float | None:
    """Return the geometric mean of runs, each run with the same weight. None: there is no run."""
    if len(runs) == 1:
        return runs[0].value
    return math.exp(math.fsum([math.log(run.value) for run in runs]) / len(runs)) if runs else None


def change_between_runs(
    before: Sequence[Estimate], after: Sequence[Estimate], confidence: float = CONFIDENCE
) -> Change:
    """Return the change between two sides, with the interval of Student's test on the logarithms of the runs' values.

    The interval comes from the differences between the runs of a side. Both sides count as equally noisy, so a single
    run can be compared with several. With one run on each side, the interval comes from the errors of both runs.

    >>> [round(end, 2) for end in change_between_runs(*[[Estimate(one, 0.0, 16) for one in (1.0, 1.02, 0.98)]] * 2)]
    [0.0, -0.07, 0.08]
    """
    first = before[0].value  # so that the change of a single run is exact
    logs = [[run._replace(value=math.log(run.value / first)) for run in side] for side in (before, after)]
    return Change(*map(math.expm1, difference_between_runs(logs[0], logs[1], confidence)))


def difference_between_runs(
    before: Sequence[Estimate], after: Sequence[Estimate], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the difference between the means of two sides, and both ends of its interval.

    With one run on each side, the interval is that of Welch's test, else that of Student's test on the runs' values.

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
        squares = math.fsum([(one - mean) ** 2 for side, mean in zip(values, means, strict=True) for one in side])
        variance = squares / freedom * (1 / len(before) + 1 / len(after))
    width = _quantile(freedom, confidence) * math.sqrt(variance)
    moved = means[1] - means[0]
    return moved, moved - width, moved + width


_FEW = {0.99: {1: 63.657, 2: 9.925, 3: 5.841}, 0.95: {1: 12.706, 2: 4.303, 3: 3.182}}
"""Quantiles by confidence and degrees of freedom, where the expansion gives too small a value."""


def _quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t, by expansion around the normal quantile.

    With 4 degrees of freedom, the result is 1 % too small; with 10, the error is negligible. `_FEW` has 1 to 3 degrees.
    """
    few = _FEW[confidence]
    if freedom in few:
        return few[int(freedom)]
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
