"""Seconds lost to uneven work, and to chance, although no rank is slow.

Even batches and even pipeline stages hold the same work in all, so that each rank would take the mean time. A rank's
deviation from this mean is due to its batch if batch sizes explain the deviation, or if all pipeline stages of a
replica deviate together. The rest is chance: of many ranks, one is always the slowest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from perf_callbacks.stragglers.peers import median
from perf_callbacks.stragglers.slow_sets import MICRO_BATCHES, Window

LEAST_STAGE = 0.05
"""Stages are uneven if the longest takes this part longer than the mean stage. Layers can't be moved more evenly."""

LEAST_BATCHES = 0.01
"""Part of a window that uneven batches must cost to count: less may be chance."""

TOGETHER = 0.7
"""Batches are uneven if the first and last stages of replicas deviate from the mean with this correlation."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """Seconds of a window."""

    healthy: float
    """Seconds on the slowest rank, with all ranks at a healthy pace."""
    batches: float
    stages: float
    chance: float

    @property
    def seconds(self) -> float:
        """Return all seconds lost."""
        return self.batches + self.stages + self.chance


def uneven(window: Window, roles: Mapping[int, object], durations: float, rest: Callable[[], object]) -> Uneven:
    """Return what uneven work cost in a window, after the times of slow ranks became healthy.

    Args:
        window: The ranks.
        roles: Coordinates of the ranks other than the pipeline's stage.
        durations: Seconds of all steps of the window.
        rest: Called between slices of the work.
    """
    times = [_healthy(window, stage.times, stage.peers.ranks) for stage in window.stages]
    sized = any(stage.even is not stage.times for stage in window.stages)
    even = [_healthy(window, stage.even, stage.peers.ranks) for stage in window.stages] if sized else times
    if not sized and len(times) > 1:
        even = _without_shared(times, [[roles.get(rank) for rank in one.peers.ranks] for one in window.stages])
    pipeline = len(times) > 1
    before = [stage.before for stage in window.stages]
    actual, means = _longest(times, before, rest)
    healthy, longest = sum(actual), actual
    batches = 0.0
    if even is not times:
        same, even_means = _longest(even, before, rest)
        if sum(actual) - sum(same) > LEAST_BATCHES * durations:
            if pipeline:  # all bubbles of a pipeline with uneven batches shrink as the local times do
                before = [0.0] * len(before)
                actual, _ = _longest(times, before, rest)
                same, _ = _longest(even, before, rest)
            batches, times, longest, means = sum(actual) - sum(same), even, same, even_means
    more = durations / sum(actual) if batches and pipeline and sum(actual) else 1.0
    levels = [median(column) for column in means]
    level = fmean(levels)
    stages = 0.0
    if pipeline and min(levels) > 0 and max(levels) > (1 + LEAST_STAGE) * level:
        shares = [level / own for own in levels]
        times = [
            [[seconds * share for seconds in column] for column in columns]
            for columns, share in zip(times, shares, strict=True)
        ]
        before = [0.0 if batches else level * (len(levels) - 1) / MICRO_BATCHES] * len(levels)
        moved, means = _longest(times, before, rest)
        means = [[fmean(row) for row in zip(*means, strict=True)]]
        stages, longest = max(0.0, sum(longest) - sum(moved)), moved
    ideal = [max(map(float.__add__, row, before)) for row in zip(*means, strict=True)]
    chance = max(0.0, sum(longest) - sum(ideal))
    return Uneven(healthy, batches * more, stages * more, chance * more)


def _healthy(window: Window, columns: Sequence[Sequence[float]], ranks: Sequence[int]) -> list[Sequence[float]]:
    """Return the times without the excess of slow ranks."""
    if not window.excess:
        return [*columns]
    found = []
    for column, rank in zip(columns, ranks, strict=True):
        if rank in window.excess:
            window.rest()
            found.append([seconds - window.excess[rank] for seconds in column])
        else:
            found.append(column)
    return found


def _longest(
    stages: Sequence[Sequence[Sequence[float]]], before: Sequence[float], rest: Callable[[], object]
) -> tuple[list[float], list[list[float]]]:
    """Return the time of each step on the slowest rank, and the mean time of each step by stage."""
    found: list[list[float]] = []
    means: list[list[float]] = []
    for columns, idle in zip(stages, before, strict=True):
        rest()
        longest, mean = [], []
        for row in zip(*columns, strict=True):
            rest()
            longest.append(max(row) + idle)
            mean.append(math.fsum(row) / len(row))
        found.append(longest)
        means.append(mean)
    return [*map(max, zip(*found, strict=True))], means


def _without_shared(
    stages: Sequence[list[Sequence[float]]], replicas: Sequence[Sequence[object]]
) -> Sequence[list[Sequence[float]]]:
    """Take out of the times the deviation that all stages of a replica share, because of its batch.

    Return the times unchanged if replicas are unknown, or if their stages don't deviate together.
    """
    names = sorted(set(replicas[0]), key=repr)
    if len(names) < 2 or any(len(one) != len(names) or {*one} != {*names} for one in replicas):  # noqa: PLR2004
        return stages
    means = [[fmean(row) for row in zip(*columns, strict=True)] for columns in stages]
    if not all(mean > 0 for column in means for mean in column):
        return stages
    deviations = [
        [
            [seconds / mean - 1 for seconds, mean in zip(columns[places.index(name)], column, strict=True)]
            for name in names
        ]
        for columns, places, column in zip(stages, replicas, means, strict=True)
    ]
    first, last = [[one for column in stage for one in column] for stage in (deviations[0], deviations[-1])]
    spread = math.sqrt(math.fsum([one * one for one in first]) * math.fsum([one * one for one in last]))
    if not spread or math.fsum(map(float.__mul__, first, last)) < TOGETHER * spread:
        return stages
    shared = {
        name: [fmean(row) for row in zip(*[stage[place] for stage in deviations], strict=True)]
        for place, name in enumerate(names)
    }
    return [
        [
            [seconds / (1 + more) for seconds, more in zip(column, shared[name], strict=True)]
            for column, name in zip(columns, places, strict=True)
        ]
        for columns, places in zip(stages, replicas, strict=True)
    ]
