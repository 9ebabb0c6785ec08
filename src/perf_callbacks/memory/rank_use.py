"""Use of the machine by a rank between two windows of the job."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from perf_callbacks.kernel.engine.resources import CORES, GPU_MEMORY, RESIDENT, UTILIZATION, WATTS

MOST_READINGS = 64
"""Most readings that are kept. Without an exchange between ranks, no window takes them."""

Reading = Mapping[str, float | None]
"""Values by the names in `RESOURCES`. None: unknown."""

_COMBINED: Mapping[str, Callable[[Sequence[float]], float]] = {
    CORES: fmean,
    RESIDENT: max,
    UTILIZATION: fmean,
    GPU_MEMORY: max,
    WATTS: fmean,
}


class RankUse:
    """Collects readings. One thread adds readings, another thread takes them; a reading added meanwhile may be lost."""

    def __init__(self) -> None:
        self._new: deque[Reading] = deque(maxlen=MOST_READINGS)
        self._last: Reading | None = None

    def add(self, reading: Reading) -> None:
        """Add a reading."""
        self._last = reading
        self._new.append(reading)

    def take(self) -> dict[str, float]:
        """Return means, and maxima of memory, since the last call. Without a new reading, repeat the last reading."""
        new, self._new = self._new, deque(maxlen=MOST_READINGS)
        readings = [*new] or ([] if self._last is None else [self._last])
        columns = {name: [reading.get(name) for reading in readings] for name in _COMBINED}
        known = {name: [value for value in column if value is not None] for name, column in columns.items()}
        return {name: _COMBINED[name](values) for name, values in known.items() if values}
