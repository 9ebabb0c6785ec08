"""Confidence intervals for ratios of sums, and for the time of quick steps.

Slow steps often come in a row, so an interval that assumes independent steps is too narrow. The method of batch means
cuts the steps into a few long batches. The means of long batches hardly depend on each other.
"""

import math
from collections.abc import Sequence
from itertools import islice, pairwise
from statistics import NormalDist, pvariance
from typing import NamedTuple

BATCHES = 16
"""Batches into which the steps of a run are cut."""

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
    """Relative change from one run to another: 0.1 is 10 % more."""

    change: float
    low: float
    """Lower end of the 99 % interval."""
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


def change(before: Estimate, after: Estimate) -> Change:
    """Return the change of an estimate, with the interval of Welch's test on logarithms."""
    log = math.log(after.value / before.value)
    variances = [(one.error**2, one.batches - 1) for one in (before, after)]
    variance = sum([each for each, _ in variances])
    width = 0.0
    if variance:
        freedom = variance**2 / sum([each**2 / freedom for each, freedom in variances])
        width = _quantile(freedom) * math.sqrt(variance)
    return Change(math.expm1(log), math.expm1(log - width), math.expm1(log + width))


def _quantile(freedom: float) -> float:
    """Return the two-sided quantile of Student's t, by expansion around the normal quantile.

    With 4 degrees of freedom, the fewest here, the result is 1 % too small; with 10, the error is negligible.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
