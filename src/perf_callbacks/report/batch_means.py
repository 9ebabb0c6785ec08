"""Confidence intervals for ratios of sums, and for quick steps, where steps depend on each other.

A slow step is often followed by another one: an interval that takes steps for independent is too narrow. The steps are
cut into a few long batches, whose means hardly depend on each other (the method of batch means).
"""

import math
from collections.abc import Sequence
from itertools import islice, pairwise
from statistics import NormalDist, pvariance
from typing import NamedTuple

BATCHES = 16
"""Batches into which the steps of a run are cut."""

FEWEST_BATCHES = 5
"""Batches of two steps without which nothing is estimated."""

CONFIDENCE = 0.99
"""Share of intervals that hold the truth: a comparison that fails builds by chance is soon ignored."""

QUANTILE = 0.05
"""Share of the steps that are shorter than a quick one."""

QUICK_BATCHES = 6
"""Batches that are left out in turn: with more of them, the jackknife's intervals are too narrow."""

FEWEST_QUICK = 120
"""Steps without which no quick one is looked for."""


class Estimate(NamedTuple):
    """A ratio of sums, and how far off it may be."""

    value: float
    error: float
    """Standard error of its logarithm."""
    batches: int


class Change(NamedTuple):
    """Relative change from one run to another: 0.1 is 10 % more."""

    change: float
    low: float
    """Lower end of the 99 % interval."""
    high: float


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Estimate the sum of one column over that of another; None for too few steps, or sums that aren't positive.

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
    """Estimate the time of a quick step, a low quantile of all steps; None for too few of them.

    Whatever else a machine does makes some steps longer, and quick ones hardly. The error is the jackknife's: by how
    much the quantile moves if one batch is left out. Quantiles of single batches would move with each slow phase of the
    machine that fills a batch.

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
    """Return the two-sided quantile of Student's t, by its expansion around the normal one.

    With 4 degrees of freedom, the fewest here, it is 1 % too small; with 10, nothing.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
