"""Memory of a fit: its parts, the slope of resident memory, and leaks of anonymous memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import fmean, median
from typing import NamedTuple

from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.summary_parts import MemorySummary

GB = 1e9

MB = 1e6

HOUR_SECONDS = 3600.0

WARM_UP = 1 / 3
"""Share of the points to leave out at the beginning, because caches, workers and allocators grow at first."""

FEWEST = 12
"""Fewest points after warm-up for a slope. With one point every 10 seconds, there is a slope after three minutes."""

MOST = 96
"""Most points to keep. If there are more, every second point is dropped, and half as many new points are added."""

GROUPS = 4
"""Number of equal parts of the run. A leak grows from each part to the next."""

STEADY = 0.6
"""Least growth between two parts in a row, relative to the mean growth. Memory that levels off is thus no leak."""

LEAST_RISE = 0.05
"""Least growth from the first part to the last, relative to the memory in the first part. Less is noise."""


class MemoryReading(NamedTuple):
    """Resident memory at a moment, either in total or only the anonymous part."""

    seconds: float
    step: int
    gb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Growth of anonymous memory that doesn't level off."""

    gb_per_hour: float
    gb_per_step: float | None
    """None: no step ended between the points."""
    before_gb: float
    """Least anonymous memory in the first part of the run after warm-up."""
    after_gb: float
    """Least anonymous memory in the last part."""


class MemoryUse:
    """Memory of a fit, as far as known. Only one thread writes a field. Any thread may read all fields."""

    def __init__(self) -> None:
        self.parts: Memory | None = None
        self.data_parallel: int | None = None
        """Number of groups of ranks that share their samples."""
        self.gb_per_hour: float | None = None
        self.leak: Leak | None = None
        self.retries = 0
        """Retries of the device's allocator in all rows so far."""
        self._retries_before: int | None = None
        self.gpu_readings = 0
        """Number of times that the GPU's use was read while training went on."""
        self._gpu_busy = 0.0

    @property
    def gpu_busy(self) -> float | None:
        """Mean share of time in which a kernel of any process ran on the GPU. None: unknown."""
        return self._gpu_busy / self.gpu_readings if self.gpu_readings else None

    def saw_gpu(self, busy: float) -> None:
        """Add a reading of the GPU's use, from 0 to 1."""
        self.gpu_readings += 1
        self._gpu_busy += busy

    def begin(self, retries: int) -> None:
        """Store the retries that the allocator counted before the fit."""
        self._retries_before = retries

    def retried(self, retries: int) -> int:
        """Store the allocator's count of retries for a row. Return the retries since the previous row."""
        before, self._retries_before = self._retries_before, retries
        since = 0 if before is None else max(0, retries - before)
        self.retries += since
        return since

    def summary(self) -> MemorySummary:
        """Return the parts and the slope so far."""
        parts = self.parts
        return MemorySummary(
            parts_gb={} if parts is None else known(parts),
            resident_gb_per_hour=self.gb_per_hour,
            micro_batch=None if parts is None else parts.micro_batch,
            micro_batches=None if parts is None else parts.micro_batches,
            data_parallel=self.data_parallel,
        )


def known(parts: Memory) -> dict[str, float]:
    """Return the parts that are known, by name.

    >>> known(Memory(step=2, device="cpu", source=None, weights_gb=0.5, peak_gb=2.0))
    {'weights': 0.5, 'peak': 2.0}
    """
    sizes = {name: getattr(parts, f"{name}_gb") for name in PARTS}
    return {name: size for name, size in sizes.items() if size is not None}


PARTS = ("weights", "gradients", "optimizer", "activations", "temporary", "context", "peak")
"""Names of the parts of memory, in the order of their fields in `Memory`."""


class Series:
    """Points of a run. A long run's points are thinned out evenly."""

    def __init__(self) -> None:
        self.points: list[MemoryReading] = []
        self._stride, self._skipped = 1, 0

    def add(self, point: MemoryReading) -> None:
        """Add a point, or skip the point to thin out the series."""
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.points.append(point)
        if len(self.points) > MOST:
            self.points = self.points[::2]
            self._stride *= 2


def after_warm_up(points: Sequence[MemoryReading]) -> Sequence[MemoryReading]:
    """Return the points after warm-up. Empty: there are too few points to judge growth."""
    warm = points[int(len(points) * WARM_UP) :]
    return warm if len(warm) >= FEWEST else ()


def slope(points: Sequence[MemoryReading]) -> float | None:
    """Return the GB per hour by which memory grows: the median slope of all pairs (Theil and Sen).

    A few points that are far off, for example during an evaluation, change the slope little. Raises `OverflowError` for
    points that no run can have.
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
    """Return the leak that the points of anonymous memory show. None: the points show no leak.

    The run after warm-up is cut into quarters. In a leak, the least memory of a quarter grows from each quarter to the
    next, by about the same amount. A single jump, a saw-tooth and growth that levels off are no leaks.
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
