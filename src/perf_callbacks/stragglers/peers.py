"""Comparison of the signals of ranks that do the same work.

A signal has one value for each step of a window on one rank; unknown is NaN. `LOCAL` is the rank's time without waits
for other ranks, `STEP` the whole step. `LOCAL` is divided among the `CAUSES`, of which `HOST` is the part that was not
measured otherwise. `WORK` is the size of the batch, present only if sizes vary.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

STEP, LOCAL, WORK = "step", "local", "work"

GC, DATA, STEAL, DEVICE, HOST = "gc", "data", "steal", "device", "host"

CAUSES = (GC, DATA, STEAL, DEVICE, HOST)
"""Garbage collection, waiting for data or a CPU, computing on the device, and other host work."""

SEEN = 8
"""Slowest ranks that are examined in each step. The next one's time limits how much shorter a step can get."""

SAMPLE = 63
"""A median over all ranks takes a sample of at least this many."""

LEAST_PART = 0.1
"""A cause is named only if it explains this part of a slow rank's excess. Less may be chance."""

Signals = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of several ranks in one step."""

    step: int
    """In the window."""
    slowest: int
    """In `Peers.ranks`."""
    late: float
    """Of the slowest rank over a usual one."""
    gains: Mapping[str, float]
    """What the step would save, by cause, if no rank exceeded its own median time for it."""
    gain: float
    """The same for all causes together."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Ranks that do the same work in one window, with a cache of computed columns."""

    ranks: Sequence[int]
    signals: Sequence[Signals]
    _columns: dict[tuple[int, str], tuple[Sequence[float], float]] = field(default_factory=dict)

    @property
    def waits_hidden(self) -> bool:
        """True if the times are stages of a device: waits there may be unseen, and count as the rank's work."""
        return STEAL not in self.signals[0] and GC in self.signals[0]

    @property
    def sample(self) -> range:
        return range(0, len(self.ranks), max(1, len(self.ranks) // SAMPLE))

    def compare(self, yield_gil: Callable[[], object]) -> Iterator[Compared]:
        """Only steps in which enough ranks have a known time are compared."""
        alone = len(self.ranks) == 1
        usual = median(known(self.signals[0][LOCAL])) if alone else 0.0
        stride = self.sample.step
        causes = [
            cause for cause in CAUSES if cause == HOST or any(cause in signals for signals in self.signals[::stride])
        ]
        if self.waits_hidden and len(self.ranks) == 2:  # noqa: PLR2004 the other rank may be slow, and this one waits
            causes = [cause for cause in causes if cause != DEVICE]
        for step, row in enumerate(zip(*[signals[LOCAL] for signals in self.signals], strict=True)):
            yield_gil()
            places: Collection[int] = range(len(row))
            sample: Sequence[float] = row[::stride]
            if math.isnan(sum(row)):
                places = [place for place in places if not math.isnan(row[place])]
                sample = known(sample)
            if not sample or (len(places) < 2 and not alone):  # noqa: PLR2004 two ranks can be compared
                continue
            top = nlargest(SEEN + 1, places, key=row.__getitem__)
            usual = usual if alone else statistics.median_low(sample)
            late = max(0.0, row[top[0]] - usual)
            gains = {cause: self._gain(row, top, step, cause) for cause in causes}
            several = sum([seconds > 0 for seconds in gains.values()]) > 1
            whole = self._gain(row, top, step, *causes) if several else sum(gains.values())
            yield Compared(step, top[0], late, gains, whole)

    def _gain(self, row: Sequence[float], top: Sequence[int], step: int, *causes: str) -> float:
        """Return what a step would save if each rank spent at most its median time on `causes`."""
        least = row[top[SEEN]] if len(top) > SEEN else -math.inf
        for place in top[:SEEN]:
            if row[place] <= least:  # the remaining ranks are faster still
                break
            excess = 0.0
            for cause in causes:
                column, usual = self.column(place, cause)
                excess += max(0.0, column[step] - usual)  # an unknown cause is no excess
            least = max(least, row[place] - excess)
        return row[top[0]] - least

    def common(self, step: int, cause: str) -> float:
        """Return the excess of a cause on a typical rank in a step: large if, for example, all wait for one disk."""
        columns = [self.column(place, cause) for place in self.sample]
        return statistics.median_low([max(0.0, column[step] - usual) for column, usual in columns])

    def explain(self, place: int, yield_gil: Callable[[], object]) -> dict[str, float]:
        """Return the part of a slow rank's excess that each large cause explains, the largest first."""
        excess = {}
        for cause in CAUSES:
            yield_gil()
            excess[cause] = self.more(place, cause)
        least = LEAST_PART * sum([seconds for seconds in excess.values() if seconds > 0])
        causes = {cause: seconds for cause, seconds in excess.items() if seconds > least}
        whole = sum(causes.values())
        return {cause: causes[cause] / whole for cause in sorted(causes, key=lambda cause: -causes[cause])}

    def more(self, place: int, cause: str) -> float:
        """Return the median seconds of a cause on a rank, minus the median on a healthy rank."""
        others = [other for other in range(len(self.ranks)) if other != place]
        others = others[:: max(1, len(others) // SAMPLE)]
        return self.median(place, cause) - low([self.median(other, cause) for other in others])

    def usual(self, cause: str) -> float:
        return median([self.median(place, cause) for place in self.sample])

    def median(self, place: int, cause: str) -> float:
        return self.column(place, cause)[1]

    def column(self, place: int, cause: str) -> tuple[Sequence[float], float]:
        """Return the seconds of a cause on a rank in each step, and their median. Unexplained time counts as `HOST`."""
        cached = self._columns.get((place, cause))
        if cached is None:
            signals = self.signals[place]
            if cause == HOST:
                parts = [signals[part] for part in CAUSES if part in signals]
                column: Sequence[float] = [*map(_rest, signals[LOCAL], *parts)]
            else:
                column = signals.get(cause, (0.0,) * len(signals[LOCAL]))
            # the lower median: if a rank is slow in half of the steps, the other half is usual
            middle = statistics.median_low((known(column) if math.isnan(sum(column)) else column) or (0.0,))
            cached = self._columns[place, cause] = column, middle
        return cached


def _rest(local: float, *parts: float) -> float:
    taken = sum(parts)
    return max(local - (sum(known(parts)) if math.isnan(taken) else taken), 0.0)


def known(values: Sequence[float]) -> list[float]:
    """Leave out NaN."""
    return [value for value in values if not math.isnan(value)]


def median(values: Collection[float]) -> float:
    """Return the median, or 0 if there are no values.

    >>> median([3.0, 1.0, 2.0, 4.0]), median([])
    (2.5, 0.0)
    """
    return statistics.median(values) if values else 0.0


def low(values: Collection[float]) -> float:
    """Return the lower quartile: the pace of a healthy rank, even if almost three quarters of the ranks are slow.

    >>> low([1.0, 4.0, 4.0, 5.0, 1.1])
    1.1
    """
    return sorted(values)[(len(values) - 1) // 4]
