"""Curves over the steps of all ranks, shortened so that a page can draw them, and the list of the slowest steps."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import ceil, isfinite, isnan
from operator import truediv
from statistics import median

from perf_callbacks.report.history import TIMES, Attempt, FitHistory

BUCKETS = 2000

MOST_DRAWN = 300
"""Slow steps, and events of a kind."""

SLOW = 1.5
"""Least time of a slow step, in median step times of its rank."""

SAMPLED = 5_000
"""Medians come from a sample of fewer than twice as many steps."""

STAGES = tuple(name for name in TIMES if name not in {"step_time", "model_flops"})

WAITING = ("backward_time", "communication_time")
"""Stages in which ranks wait for each other."""

OWN = tuple(name for name in STAGES if name not in WAITING)
"""Stages in which a slow rank is slower than the others."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A slow step of a rank."""

    step: int
    rank: int
    seconds: float
    reason: str | None
    """Why the step is excluded from means and rates."""


class Axis:
    """Step axis of a chart, for one or several fits, in buckets of equally many steps."""

    def __init__(self, fits: Iterable[FitHistory], most: int, within: range | None = None) -> None:
        self.within = within
        ends = [
            (attempt.step[lower], attempt.step[upper - 1])
            for fit in fits
            for _, attempt, lower, upper in kept(fit, within)
            if upper > lower
        ]
        self.first = min((first for first, _ in ends), default=0)
        self.last = max((last for _, last in ends), default=-1)
        self.width = max(1, ceil((self.last - self.first + 1) / most))
        self.count = ceil((self.last - self.first + 1) / self.width)

    @property
    def middles(self) -> list[float]:
        return [self.first + place * self.width + (self.width - 1) / 2 for place in range(self.count)]

    def cut(self, attempt: Attempt, lower: int, upper: int) -> Iterator[tuple[int, int, int]]:
        while lower < upper:
            bucket = (attempt.step[lower] - self.first) // self.width
            end = bisect_left(attempt.step, self.first + (bucket + 1) * self.width, lower, upper)
            yield bucket, lower, end
            lower = end


def kept(fit: FitHistory, within: range | None = None) -> Iterator[tuple[int, Attempt, int, int]]:
    """Yield rank, attempt, first index and end index. Steps that a later attempt repeats are left out."""
    for rank in sorted(fit.ranks):
        for attempt, end in fit.kept(rank):
            if within is None:
                yield rank, attempt, 0, end
            else:
                first, last = (bisect_left(attempt.step, step, 0, end) for step in (within.start, within.stop))
                yield rank, attempt, first, last


def included(attempt: Attempt, lower: int, upper: int) -> Sequence[int]:
    """Indices of measured steps in `range(lower, upper)`, without excluded ones."""
    times = attempt.columns["step_time"]
    if not attempt.excluded:
        return [place for place in range(lower, upper) if times[place] > 0]
    return [place for place in range(lower, upper) if times[place] > 0 and attempt.step[place] not in attempt.excluded]


def left_out(fit: FitHistory, within: range | None = None) -> "Counter[str]":
    numbers: Counter[str] = Counter()
    for _, attempt, lower, upper in kept(fit, within):
        times = attempt.columns["step_time"]
        without = sum(not times[place] > 0 for place in range(lower, upper))
        first, last = (attempt.step[lower], attempt.step[upper - 1]) if upper > lower else (0, -1)
        reasons = [reason for step, reason in attempt.excluded.items() if first <= step <= last]
        numbers.update(reasons)
        numbers["without a time"] += max(0, without - reasons.count("lost") - reasons.count("captured"))
    return +numbers


class Band:
    """Minimum, mean and maximum of a ratio in each bucket; None: the bucket has no value."""

    def __init__(self, count: int) -> None:
        self.above: list[float] = [0] * count
        self.below: list[float] = [0] * count
        self.least: list[float | None] = [None] * count
        self.most: list[float | None] = [None] * count

    def add(self, bucket: int, above: Sequence[float], below: Sequence[float]) -> None:
        ratios = [*map(truediv, above, below)]
        least, most = self.least[bucket], self.most[bucket]
        self.least[bucket] = min(ratios) if least is None else min(least, *ratios)
        self.most[bucket] = max(ratios) if most is None else max(most, *ratios)
        self.above[bucket] += sum(above)
        self.below[bucket] += sum(below)

    @property
    def mean(self) -> list[float | None]:
        return [
            sum_above / sum_below if sum_below else None
            for sum_above, sum_below in zip(self.above, self.below, strict=True)
        ]


@dataclass(slots=True)
class StepSeries:
    """All series that the page draws over the steps."""

    axis: Axis
    ends: tuple[int, int]
    times: Band
    flops_per_second: Band
    shares: dict[str, list[float | None]]
    mean_seconds: float | None
    stage_seconds: dict[str, float]
    """Summed over all drawn steps and all ranks."""
    seconds: float
    """Of all drawn steps of all ranks."""
    steps: int
    flops: float
    """Of the drawn steps whose FLOPs are known."""
    flops_seconds: float
    """Of the drawn steps whose FLOPs are known."""
    flops_steps: int
    """Of the drawn steps whose FLOPs are known."""


def series(fit: FitHistory, axis: Axis) -> StepSeries:
    own = Axis([fit], BUCKETS, axis.within)
    times, rates = Band(axis.count), Band(axis.count)
    stages = {name: [0.0] * axis.count for name in STAGES}
    names: set[str] = set()
    flops_steps = 0
    for _, attempt, lower, upper in kept(fit, axis.within):
        columns = attempt.columns
        for bucket, start, end in axis.cut(attempt, lower, upper):
            places = included(attempt, start, end)
            if not places:
                continue
            took = [columns["step_time"][place] for place in places]
            times.add(bucket, took, [1] * len(took))
            for name, sums in stages.items():
                column = columns[name]
                if not isnan(column[places[0]]):
                    sums[bucket] += sum([value for value in [column[place] for place in places] if value > 0])
                    names.add(name)
            column = columns["model_flops"]
            worked = [
                (column[place], second) for place, second in zip(places, took, strict=True) if not isnan(column[place])
            ]
            if worked:
                rates.add(bucket, [work for work, _ in worked], [second for _, second in worked])
                flops_steps += len(worked)
    seconds, number = sum(times.above), int(sum(times.below))
    return StepSeries(
        axis=axis,
        ends=(own.first, own.last),
        times=times,
        flops_per_second=rates,
        shares={
            name: [part / whole if whole else None for part, whole in zip(stages[name], times.above, strict=True)]
            for name in STAGES
            if name in names
        },
        mean_seconds=seconds / number if number else None,
        stage_seconds={name: sum(stages[name]) for name in STAGES if name in names},
        seconds=seconds,
        steps=number,
        flops=sum(rates.above),
        flops_seconds=sum(rates.below),
        flops_steps=flops_steps,
    )


def medians(fit: FitHistory, rank: int) -> dict[str, float]:
    """In a long run, from a sample of some thousand steps."""
    columns: dict[str, list[float]] = {name: [] for name in TIMES}
    parts = fit.kept(rank)
    stride = max(1, sum(upper for _, upper in parts) // SAMPLED)
    for attempt, upper in parts:
        for place in included(attempt, 0, upper)[::stride]:
            for name, values in columns.items():
                value = attempt.columns[name][place]
                if not isnan(value):
                    values.append(value)
    return {name: median(values) for name, values in columns.items() if values}


def outliers(fit: FitHistory, usual: Mapping[int, Mapping[str, float]], within: range | None = None) -> list[Outlier]:
    """The slowest steps of all ranks, perhaps excluded from means. `usual` are the medians by rank."""
    steps: list[Outlier] = []
    for rank, attempt, lower, upper in kept(fit, within):
        floor = SLOW * usual[rank].get("step_time", 0.0)
        times = attempt.columns["step_time"]
        slow = [place for place in range(lower, upper) if times[place] > floor]
        steps += [
            Outlier(attempt.step[place], rank, times[place], attempt.excluded.get(attempt.step[place]))
            for place in nlargest(MOST_DRAWN, slow, key=times.__getitem__)
        ]
    return sorted(nlargest(MOST_DRAWN, steps, key=lambda step: step.seconds), key=lambda step: (step.step, step.rank))


def short(values: Iterable[float | None], digits: int = 4) -> list[float | None]:
    return [None if value is None else rounded(value, digits) for value in values]


def rounded(value: float, digits: int = 4) -> float | None:
    """None if the value is infinite or NaN."""
    if not isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
