"""Collect readings of a rank's use of the machine, and summarize them for each window of steps."""

from collections import deque
from collections.abc import Mapping
from statistics import fmean

from perf_callbacks.kernel.engine.resources import GPU_MEMORY, RESIDENT, RESOURCES

MOST_READINGS = 64
"""Largest number of readings that are kept. If no window takes readings, the oldest readings are dropped."""

Reading = Mapping[str, float | None]
"""Maps each name in `RESOURCES` to a measured value. None means unknown."""

_MEMORY = (RESIDENT, GPU_MEMORY)


class RankUse:
    """Collects readings of the use of the machine. One thread adds readings, and another thread takes them.

    A reading that is added while `take` runs may be lost.
    """

    def __init__(self) -> None:
        self._new: deque[Reading] = deque(maxlen=MOST_READINGS)
        self._last: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Add a reading."""
        self._last = reading
        self._new.append(reading)

    def take(self) -> dict[str, float]:
        """Return the mean of each value since the previous call of this method. For memory, return the maximum.

        If no reading was added since the previous call of this method, return the values of the most recent reading.
        """
        new, self._new = self._new, deque(maxlen=MOST_READINGS)
        readings = [*new] or ([] if self._last is None else [self._last])
        columns = {name: [reading.get(name) for reading in readings] for name in RESOURCES}
        known = {name: [value for value in column if value is not None] for name, column in columns.items()}
        return {name: max(values) if name in _MEMORY else fmean(values) for name, values in known.items() if values}
