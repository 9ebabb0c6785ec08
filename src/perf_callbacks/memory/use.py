"""The memory of a fit: its parts, the growth of resident memory, and leaks of anonymous memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import fmean, median
from typing import NamedTuple

from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.summary_parts import MemorySummary
from perf_callbacks.kernel.units import GB, HOUR_SECONDS

WARM_UP = 1 / 3  # share of a run's readings, during which caches and allocators grow

FEWEST = 12  # fewest readings after warm-up for a slope: at one per 10 seconds, three minutes

MOST = 96  # readings that a series keeps; a longer one drops every second one, and takes half as many

GROUPS = 4  # equal parts of a run; with a leak, memory grows from each to the next

STEADY = 0.6  # least growth between neighboring parts in a leak, as a share of the mean: memory that levels off is none

LEAST_RISE = 0.05  # least growth in a leak, as a share, from the first to the final part of a run


def in_gb(size: int | None) -> float | None:
    return None if size is None else size / GB


class MemoryReading(NamedTuple):
    """Resident memory at one moment: all of it, or only its anonymous part."""

    seconds: float
    step: int
    gb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Growth of anonymous memory that doesn't level off."""

    gb_per_hour: float
    gb_per_step: float | None
    """Per optimizer step; None if no step ended between the first and the last reading."""
    before_gb: float  # smallest in the first quarter of the run after warm-up
    after_gb: float  # smallest in the last quarter


class MemoryUse:
    """The memory of a fit. Any thread may read a field, but only one writes it."""

    def __init__(self) -> None:
        self.parts: Memory | None = None
        self.data_parallel: int | None = None  # groups of ranks that train on the same samples
        self.gb_per_hour: float | None = None
        self.leak: Leak | None = None
        self.retries = 0  # of the device's allocator, since the fit began
        self._retries_before: int | None = None
        self.gpu_readings = 0  # after the fit's first step
        self._gpu_busy = 0.0

    @property
    def gpu_busy(self) -> float | None:
        """Mean share of time in which a kernel of any process ran on the GPU; None if unknown."""
        return self._gpu_busy / self.gpu_readings if self.gpu_readings else None

    def saw_gpu(self, busy: float) -> None:
        self.gpu_readings += 1
        self._gpu_busy += busy

    def begin(self, retries: int) -> None:
        self._retries_before = retries

    def retried(self, retries: int) -> int:
        """Return the retries since the previous call; `retries` is the allocator's total."""
        before, self._retries_before = self._retries_before, retries
        since = 0 if before is None else max(0, retries - before)
        self.retries += since
        return since

    def summary(self) -> MemorySummary:
        parts = self.parts
        return MemorySummary(
            parts_gb={} if parts is None else parts_in_gb(parts),
            resident_gb_per_hour=self.gb_per_hour,
            micro_batch=None if parts is None else parts.micro_batch,
            micro_batches=None if parts is None else parts.micro_batches,
            data_parallel=self.data_parallel,
        )


def parts_in_gb(parts: Memory) -> dict[str, float]:
    """Return the GB of each known part.

    >>> parts_in_gb(Memory(step=2, device="cpu", source=None, weights_gb=0.5, peak_gb=2.0))
    {'weights': 0.5, 'peak': 2.0}
    """
    sizes = {name: getattr(parts, f"{name}_gb") for name in PARTS}
    return {name: size for name, size in sizes.items() if size is not None}


PARTS = ("weights", "gradients", "optimizer", "activations", "temporary", "context", "peak")
"""In the order of the fields of `Memory`."""


class Series:
    """Readings of a run in order of time; of a long run only some, at equal distances."""

    def __init__(self) -> None:
        self.points: list[MemoryReading] = []
        self._stride, self._skipped = 1, 0

    def add(self, point: MemoryReading) -> None:
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.points.append(point)
        if len(self.points) > MOST:
            self.points = self.points[::2]
            self._stride *= 2


def after_warm_up(points: Sequence[MemoryReading]) -> Sequence[MemoryReading]:
    """Return nothing if there are fewer than `FEWEST`."""
    warm = points[int(len(points) * WARM_UP) :]
    return warm if len(warm) >= FEWEST else ()


def slope(points: Sequence[MemoryReading]) -> float | None:
    """Return the growth in GB per hour, or None if there are too few readings.

    It is the median slope of all pairs of readings (Theil-Sen estimator), which a few outliers, as during an
    evaluation, hardly change. Raise `OverflowError` if it is infinite.
    """
    warm = after_warm_up(points)
    slopes = [
        (second.gb - first.gb) / (second.seconds - first.seconds)
        for place, first in enumerate(warm)
        for second in warm[place + 1 :]
        if second.seconds > first.seconds
    ]
    if not slopes:
        return None
    per_hour = median(slopes) * HOUR_SECONDS
    if not isfinite(per_hour):
        raise OverflowError(per_hour)
    return per_hour


def leak(points: Sequence[MemoryReading]) -> Leak | None:
    """Return the leak that readings of anonymous memory show.

    The run after warm-up is cut into quarters, and the smallest reading grows from each to the next by about the same
    amount. A single jump is not a leak, and neither is growth that levels off.
    """
    warm = after_warm_up(points)
    if not warm:
        return None
    cuts = [len(warm) * number // GROUPS for number in range(GROUPS + 1)]
    levels = [min([point.gb for point in warm[start:stop]]) for start, stop in pairwise(cuts)]
    rises = [second - first for first, second in pairwise(levels)]
    if min(rises) < STEADY * fmean(rises) or levels[-1] - levels[0] < LEAST_RISE * levels[0] or min(rises) <= 0:
        return None
    steps, per_hour = warm[-1].step - warm[0].step, slope(points)
    if per_hour is None or per_hour <= 0:
        return None
    hours = (warm[-1].seconds - warm[0].seconds) / HOUR_SECONDS
    return Leak(
        gb_per_hour=per_hour,
        gb_per_step=per_hour * hours / steps if steps else None,
        before_gb=levels[0],
        after_gb=levels[-1],
    )
