"""Sum up readings of a rank's use of the machine, a GPU's energy, and the effect of lowered clocks."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from perf_callbacks.kernel.engine.resources import GPU_MEMORY, RESIDENT, RESOURCES
from perf_callbacks.kernel.process import counters
from perf_callbacks.kernel.process.counters import DeviceUse
from perf_callbacks.kernel.records.summary_parts import EnergySummary

FEWEST_STEPS = 20
"""Smallest number of steps for which the energy per step is computed. A reading may be taken in the middle of a step,
so the number of steps between two readings has an error of up to one step."""

HEAT = "heat"

CAUSES = {
    counters.HARDWARE_HEAT: HEAT,
    counters.DRIVER_HEAT: HEAT,
    counters.POWER_BRAKE: counters.POWER_BRAKE,
    counters.HARDWARE_SLOWDOWN: counters.HARDWARE_SLOWDOWN,
    counters.BY_HAND: counters.BY_HAND,
    counters.POWER_CAP: counters.POWER_CAP,
}
"""Cause of a lower clock, for each reason that the driver reports. The most serious reason comes first. If a reading
has several reasons, only the most serious reason counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lowered:
    """Summary of all readings in which one cause lowered the clock. Clock and temperature are means of the readings."""

    readings: int = 0
    lost: float = 0.0
    """Lost time, in units of one reading. A busy device at half of its full clock loses 0.5 per reading. The speed of
    all work is assumed to be proportional to the clock. Time in which the device is idle adds nothing."""
    sm_mhz: float = 0.0
    max_sm_mhz: int = 0
    celsius: float | None = None
    limit_watts: float | None = None
    """Power limit in the last reading. `default_limit_watts` comes from the same reading."""
    default_limit_watts: float | None = None


def _with(before: Lowered, use: DeviceUse, sm_mhz: int, max_sm_mhz: int) -> Lowered:
    """Return `before` with one more reading."""
    readings = before.readings + 1
    celsius: float | None = use.celsius
    if before.celsius is not None and celsius is not None:
        celsius = before.celsius + (celsius - before.celsius) / readings
    busy = 1.0 if use.utilization is None else use.utilization
    return Lowered(
        readings=readings,
        lost=before.lost + busy * (1 - sm_mhz / max_sm_mhz),
        sm_mhz=before.sm_mhz + (sm_mhz - before.sm_mhz) / readings,
        max_sm_mhz=max_sm_mhz,
        celsius=celsius,
        limit_watts=use.limit_watts,
        default_limit_watts=use.default_limit_watts,
    )


class DeviceReadings:
    """Sums over all readings of a fit's GPU. One thread adds readings, and any thread may read the sums."""

    def __init__(self) -> None:
        self.clocked = 0
        """Number of readings in which the clock and the reasons for a lower clock are known."""
        self.lowered: Mapping[str, Lowered] = {}
        """For each cause, the summary of the readings in which this cause lowered the clock."""
        self._energy = 0.0, 0
        self._shared = False
        self._before: tuple[int, float] | None = None

    def add(self, step: int, use: DeviceUse) -> float | None:
        """Add a reading that was taken after `step` steps.

        Return the joules that the GPU used since the previous reading, or None if the joules are unknown.
        """
        self._shared |= (use.processes or 0) > 1
        mhz, most = use.sm_mhz, use.max_sm_mhz
        if use.throttled_by is not None and mhz is not None and most:
            self.clocked += 1
            cause = next((CAUSES[reason] for reason in CAUSES if reason in use.throttled_by), None)
            if cause is not None and mhz < most:
                self.lowered = {**self.lowered, cause: _with(self.lowered.get(cause, Lowered()), use, mhz, most)}
        before, self._before = self._before, None if use.joules is None else (step, use.joules)
        if before is None or use.joules is None or use.joules < before[1]:  # a reloaded driver counts from 0
            return None
        self._energy = self._energy[0] + use.joules - before[1], self._energy[1] + step - before[0]
        return use.joules - before[1]

    def summary(self) -> EnergySummary | None:
        """Return the energy of the fit, or None if it is unknown.

        The energy is unknown after too few steps, or if several processes share the device.
        """
        joules, steps = self._energy
        return EnergySummary(joules=joules, steps=steps) if steps >= FEWEST_STEPS and not self._shared else None


MOST_READINGS = 64
"""Largest number of readings that are kept. If no window takes readings, the oldest readings are dropped."""

Reading = Mapping[str, float | None]
"""Maps each name in `RESOURCES` to a measured value. None means unknown."""

_MEMORY = (RESIDENT, GPU_MEMORY)


class RankUse:
    """Collects readings of the machine's use. A side thread adds readings, and the engine takes all new readings.

    A reading that is added while `take` runs may be lost.
    """

    def __init__(self) -> None:
        self._new: deque[Reading] = deque(maxlen=MOST_READINGS)
        self._last: Reading | None = None

    def add(self, reading: Reading) -> None:
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
