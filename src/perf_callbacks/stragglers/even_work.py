"""Corrects local times for batches of unusual size: a rank with more tokens takes longer, but is not slow."""

import math
from collections.abc import Callable, Sequence
from itertools import chain

from perf_callbacks.stragglers.peers import DEVICE, HOST, LOCAL, SAMPLE, WORK, Peers, Signals, known, median

EXPLAINED = 0.8
"""Sizes explain local times if correcting for them lowers the spread to less than this part."""


def without_batch_size(signals: Sequence[Signals], yield_gil: Callable[[], object]) -> Sequence[Signals]:
    """Subtract the seconds that larger batches explain. Medians over ranks keep a slow rank visible."""
    sized = [rank for rank in signals if WORK in rank]
    sample = sized[:: max(1, len(sized) // SAMPLE)]
    sizes = [*chain.from_iterable([known(rank[WORK]) for rank in sample])]
    if not sizes or min(sizes) == max(sizes):
        return signals
    usual = median(sizes)
    paces: list[float] = []
    for row in sample:
        yield_gil()
        paces += _paces(row)
    pace = median(paces)
    yield_gil()
    return [_one(signal, usual, pace, yield_gil) for signal in signals]


def extra_seconds(signals: Sequence[Signals], yield_gil: Callable[[], object]) -> list[list[float]] | None:
    """Return each batch's extra seconds over the mean size, which an unknown size counts as; negative if smaller.

    None: sizes don't explain local times, or a rank has none.
    """
    if not all(WORK in rank for rank in signals):
        return None
    pace = _seconds_per_unit(signals[:: max(1, len(signals) // SAMPLE)], yield_gil)
    if pace is None:
        return None
    means = []
    for row in zip(*[rank[WORK] for rank in signals], strict=True):
        yield_gil()
        sizes = known(row)
        means.append(math.fsum(sizes) / len(sizes) if sizes else math.nan)
    extras = []
    for rank in signals:
        yield_gil()
        extra = [pace * (size - mean) for size, mean in zip(rank[WORK], means, strict=True)]
        extras.append([0.0 if math.isnan(seconds) else seconds for seconds in extra])
    return extras


def _seconds_per_unit(signals: Sequence[Signals], yield_gil: Callable[[], object]) -> float | None:
    """Return the slope of Tukey's resistant line. None: sizes don't explain local times."""
    points: list[tuple[float, float]] = []
    for rank in signals:
        yield_gil()
        pairs = zip(rank[WORK], rank[LOCAL], strict=True)
        points += [(size, seconds) for size, seconds in pairs if not math.isnan(size + seconds)]
    points.sort()
    yield_gil()
    third = len(points) // 3
    if not third:
        return None
    (small, fast), (large, slow) = [
        [median([point[axis] for point in part]) for axis in (0, 1)] for part in (points[:third], points[-third:])
    ]
    if small >= large or fast >= slow:
        return None
    pace = (slow - fast) / (large - small)
    yield_gil()
    plain, even = [_deviation([seconds - by * size for size, seconds in points]) for by in (0.0, pace)]
    return pace if even < EXPLAINED * plain else None


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return median([abs(value - middle) for value in values])


def _paces(signals: Signals) -> list[float]:
    """Return seconds per unit of work in each step, of `HOST` and `DEVICE`: other causes don't grow with the batch."""
    peers = Peers((0,), (signals,))
    (host, _), (device, _) = peers.column(0, HOST), peers.column(0, DEVICE)
    grown = [own + other for own, other in zip(host, device, strict=True)]
    return known([seconds / size for seconds, size in zip(grown, signals[WORK], strict=True) if size])


def _one(signals: Signals, usual: float, pace: float, yield_gil: Callable[[], object]) -> Signals:
    yield_gil()
    if WORK not in signals:
        return signals
    local = [
        seconds - pace * max(0.0, size - usual)  # an unknown size counts as usual
        for seconds, size in zip(signals[LOCAL], signals[WORK], strict=True)
    ]
    return {**signals, LOCAL: local}
