"""Seconds lost to uneven work, and to chance, although no rank is slow.

If the work were split evenly over batches and pipeline stages, each rank would take the mean time. A deviation is the
batch's if batch sizes explain it or, without sizes, if a replica's first and last pipeline stage deviate together. What
neither batches nor pipeline stages explain counts as chance.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from perf_callbacks.kernel.records.shares import WORTH
from perf_callbacks.stragglers.peers import median
from perf_callbacks.stragglers.slow_sets import MICRO_BATCHES, ComparedWindow

LEAST_STAGE = 0.05
"""Excess of the longest pipeline stage over the mean, from which stages are uneven. Moving layers can't remove less."""

LEAST_PART = 0.1
"""Smallest estimate of a batch, as a part of the mean size."""

TOGETHER = 0.7
"""Correlation of the first and the last pipeline stage's deviations that shows uneven batches."""


@dataclass(frozen=True, slots=True)
class UnevenLoss:
    """Seconds of a window that uneven work and chance cost."""

    healthy: float = 0.0
    """Of the slowest rank, if all ranks had a healthy pace."""
    batches: float = 0.0
    stages: float = 0.0
    chance: float = 0.0

    @property
    def seconds(self) -> float:
        return self.batches + self.stages + self.chance


def uneven(
    window: ComparedWindow, roles: Mapping[int, object], durations: float, yield_gil: Callable[[], object]
) -> UnevenLoss:
    """Return the cost of uneven work in a window, without the excess of slow ranks.

    `roles` are coordinates without the pipeline stage, `durations` all steps of the window, and `yield_gil` runs
    between slices of the work.
    """
    times = [_healthy(window, stage.times, stage.peers.ranks) for stage in window.stages]
    sized = any(stage.even is not stage.times for stage in window.stages)
    even = [_healthy(window, stage.even, stage.peers.ranks) for stage in window.stages] if sized else times
    if not sized and len(times) > 1:
        replicas = [[roles.get(rank) for rank in stage.peers.ranks] for stage in window.stages]
        even = _without_shared(times, replicas, yield_gil)
    pipeline = len(times) > 1
    before = [stage.before for stage in window.stages]
    actual, means = _longest(times, before, yield_gil)
    healthy, longest = sum(actual), actual
    batches = 0.0
    if even is not times:
        same, even_means = _longest(even, before, yield_gil)
        if sum(actual) - sum(same) > WORTH * durations:
            if pipeline:  # bubbles shrink in proportion to local times: `more` adds them below
                before = [0.0] * len(before)
                actual, _ = _longest(times, before, yield_gil)
                same, _ = _longest(even, before, yield_gil)
            batches, times, longest, means = sum(actual) - sum(same), even, same, even_means
    factor = durations / sum(actual) if batches and pipeline and sum(actual) else 1.0
    levels = [median(column) for column in means]
    level = fmean(levels)
    stages = 0.0
    if pipeline and min(levels) > 0 and max(levels) > (1 + LEAST_STAGE) * level:
        shares = [level / own for own in levels]
        times = [_scaled(columns, share, yield_gil) for columns, share in zip(times, shares, strict=True)]
        before = [0.0 if batches else level * (len(levels) - 1) / MICRO_BATCHES] * len(levels)
        moved, means = _longest(times, before, yield_gil)
        means = [[fmean(row) for row in zip(*means, strict=True)]]
        stages, longest = max(0.0, sum(longest) - sum(moved)), moved
    ideal = [max(map(float.__add__, row, before)) for row in zip(*means, strict=True)]
    chance = max(0.0, sum(longest) - sum(ideal))
    return UnevenLoss(healthy, batches * factor, stages * factor, chance * factor)


def _healthy(window: ComparedWindow, columns: Sequence[Sequence[float]], ranks: Sequence[int]) -> list[Sequence[float]]:
    """Return the times without the excess of slow ranks."""
    if not window.excess:
        return [*columns]
    healthy: list[Sequence[float]] = []
    for column, rank in zip(columns, ranks, strict=True):
        if rank in window.excess:
            window.yield_gil()
            healthy.append([seconds - window.excess[rank] for seconds in column])
        else:
            healthy.append(column)
    return healthy


def _scaled(
    columns: Sequence[Sequence[float]], factor: float, yield_gil: Callable[[], object]
) -> list[Sequence[float]]:
    scaled: list[Sequence[float]] = []
    for column in columns:
        yield_gil()
        scaled.append([seconds * factor for seconds in column])
    return scaled


def _longest(
    stages: Sequence[Sequence[Sequence[float]]], before: Sequence[float], yield_gil: Callable[[], object]
) -> tuple[list[float], list[list[float]]]:
    """Return the slowest rank's time, and each pipeline stage's mean time, in each step."""
    longest_times: list[list[float]] = []
    means: list[list[float]] = []
    for columns, idle in zip(stages, before, strict=True):
        yield_gil()
        longest, mean = [], []
        for row in zip(*columns, strict=True):
            yield_gil()
            longest.append(max(row) + idle)
            mean.append(math.fsum(row) / len(row))
        longest_times.append(longest)
        means.append(mean)
    return [*map(max, zip(*longest_times, strict=True))], means


def _without_shared(
    stages: list[list[Sequence[float]]], replicas: Sequence[Sequence[object]], yield_gil: Callable[[], object]
) -> list[list[Sequence[float]]]:
    """Remove the effect of a batch's size from all pipeline stages that compute it.

    Times stay if replicas are unknown, or if their stages don't deviate together.
    """
    names = sorted(set(replicas[0]), key=repr)
    if len(names) < 2 or any(len(replica) != len(names) or {*replica} != {*names} for replica in replicas):  # noqa: PLR2004
        return stages
    _, means = _longest(stages, [0.0] * len(stages), yield_gil)
    if not all(mean > 0 for column in means for mean in column):
        return stages
    deviations: list[dict[object, list[float]]] = []
    for columns, ranks, column in zip(stages, replicas, means, strict=True):
        deviations.append({})
        for own, name in zip(columns, ranks, strict=True):
            yield_gil()
            deviations[-1][name] = [seconds / mean - 1 for seconds, mean in zip(own, column, strict=True)]
    if _correlation(deviations[0], deviations[-1], names) < TOGETHER:
        return stages
    evened: list[list[Sequence[float]]] = [[] for _ in stages]
    shared: dict[object, list[float]] = {}
    for name in names:
        yield_gil()
        shared[name] = [
            max(1 + fmean(row), LEAST_PART) for row in zip(*[deviation[name] for deviation in deviations], strict=True)
        ]
    for even, columns, ranks in zip(evened, stages, replicas, strict=True):
        for own, name in zip(columns, ranks, strict=True):
            yield_gil()
            even.append([*map(float.__truediv__, own, shared[name])])
    return evened


def _correlation(
    left: Mapping[object, Sequence[float]], other: Mapping[object, Sequence[float]], names: Sequence[object]
) -> float:
    """The mean of each set is 0."""
    products = [math.fsum(map(float.__mul__, left[name], other[name])) for name in names]
    squares = [math.fsum([value * value for name in names for value in side[name]]) for side in (left, other)]
    whole = math.sqrt(squares[0] * squares[1])
    return math.fsum(products) / whole if whole else 0.0
