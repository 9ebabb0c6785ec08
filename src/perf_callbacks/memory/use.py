"""Summarize the memory of a fit: its parts, the growth of resident memory, and leaks of anonymous memory."""

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
"""Length of the warm-up, as a share of a run's memory readings. During warm-up, caches and allocators grow."""

FEWEST = 12
"""A slope is computed if there are at least this many readings after warm-up. With a reading every 10 seconds, the
first slope is known after three minutes."""

MOST = 96
"""Largest number of readings that a series keeps. A series that grows longer drops every second reading, and adds new
readings half as often as before."""

GROUPS = 4
"""Number of equal parts into which a run is cut. With a leak, memory grows from each part to the next."""

STEADY = 0.6
"""In a leak, the smallest growth between neighboring parts of a run is at least this share of the mean growth. Memory
that levels off is therefore not a leak."""

LEAST_RISE = 0.05
"""In a leak, memory grows by at least this share between the first and the final part of a run."""


def in_gb(size: int | None) -> float | None:
    """Convert bytes to GB. None means unknown."""
    return None if size is None else size / GB


class MemoryReading(NamedTuple):
    """Resident memory at one moment: either all resident memory, or only its anonymous part."""

    seconds: float
    step: int
    gb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Growth of anonymous memory that doesn't level off."""

    gb_per_hour: float
    gb_per_step: float | None
    """Growth per optimizer step. None means that no step ended between the first and the last reading."""
    before_gb: float
    """Smallest anonymous memory in the first quarter of the run after warm-up."""
    after_gb: float
    """Smallest anonymous memory in the last quarter of the run."""


class MemoryUse:
    """Known facts about the memory of a fit. Any thread may read a field, but a single thread writes the field."""

    def __init__(self) -> None:
        self.parts: Memory | None = None
        self.data_parallel: int | None = None
        """Number of data-parallel groups. All ranks of a data-parallel group train on the same samples."""
        self.gb_per_hour: float | None = None
        self.leak: Leak | None = None
        self.retries = 0
        """Number of retries of the device's allocator since the fit began."""
        self._retries_before: int | None = None
        self.gpu_readings = 0
        """Number of readings of the GPU's utilization after the fit's first step."""
        self._gpu_busy = 0.0

    @property
    def gpu_busy(self) -> float | None:
        """Mean share of time in which a kernel of any process ran on the GPU. None means unknown."""
        return self._gpu_busy / self.gpu_readings if self.gpu_readings else None

    def saw_gpu(self, busy: float) -> None:
        """Add a reading of the GPU's utilization, from 0 to 1."""
        self.gpu_readings += 1
        self._gpu_busy += busy

    def begin(self, retries: int) -> None:
        self._retries_before = retries

    def retried(self, retries: int) -> int:
        """Return the number of allocator retries since the previous call. `retries` is the allocator's total count."""
        before, self._retries_before = self._retries_before, retries
        since = 0 if before is None else max(0, retries - before)
        self.retries += since
        return since

    def summary(self) -> MemorySummary:
        """Return the parts of memory and the growth of resident memory, for the `summary` record."""
        parts = self.parts
        return MemorySummary(
            parts_gb={} if parts is None else known(parts),
            resident_gb_per_hour=self.gb_per_hour,
            micro_batch=None if parts is None else parts.micro_batch,
            micro_batches=None if parts is None else parts.micro_batches,
            data_parallel=self.data_parallel,
        )


def known(parts: Memory) -> dict[str, float]:
    """Return the GB of each known part of memory. The keys are the names of the parts.

    >>> known(Memory(step=2, device="cpu", source=None, weights_gb=0.5, peak_gb=2.0))
    {'weights': 0.5, 'peak': 2.0}
    """
    sizes = {name: getattr(parts, f"{name}_gb") for name in PARTS}
    return {name: size for name, size in sizes.items() if size is not None}


PARTS = ("weights", "gradients", "optimizer", "activations", "temporary", "context", "peak")
"""Names of the parts of memory, in the order of the fields of `Memory`."""


class Series:
    """Memory readings of a run, in order of time. In a long run, only some readings are kept, at equal distances."""

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
    """Return the readings after warm-up, or nothing if there are fewer than `FEWEST` such readings."""
    warm = points[int(len(points) * WARM_UP) :]
    return warm if len(warm) >= FEWEST else ()


def slope(points: Sequence[MemoryReading]) -> float | None:
    """Return the growth of memory in GB per hour, or None if there are too few readings.

    The growth is the median slope of all pairs of readings (Theil-Sen estimator). A few outliers, for example during an
    evaluation, hardly change the median. Raise `OverflowError` if the growth is infinite.
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
    """Return the leak that readings of anonymous memory show, or None if they show no leak.

    The run after warm-up is cut into quarters. If memory leaks, the smallest reading of a quarter grows from each
    quarter to the next by about the same amount. A single jump is not a leak, and neither is growth that levels off.
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
