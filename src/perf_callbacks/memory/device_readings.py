"""Readings of a rank's use of the machine, a GPU's energy, and the effect of lowered clocks."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from perf_callbacks.kernel.engine.resources import GPU_MEMORY, RESIDENT, RESOURCES
from perf_callbacks.kernel.process import device_use
from perf_callbacks.kernel.process.device_use import DeviceUse
from perf_callbacks.kernel.records.summary_parts import EnergySummary

FEWEST_STEPS = 20  # fewest steps for an energy per step: a reading in the middle of a step is off by up to one step

HEAT = "heat"

CAUSES = {
    device_use.HARDWARE_HEAT: HEAT,
    device_use.DRIVER_HEAT: HEAT,
    device_use.POWER_BRAKE: device_use.POWER_BRAKE,
    device_use.HARDWARE_SLOWDOWN: device_use.HARDWARE_SLOWDOWN,
    device_use.BY_HAND: device_use.BY_HAND,
    device_use.POWER_CAP: device_use.POWER_CAP,
}
"""Cause of a lower clock by the driver's reason, the most serious first; only the first counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockLimit:
    """Readings in which one cause lowered the clock. Clock and temperature are means."""

    readings: int = 0
    lost: float = 0.0
    """In units of one reading: a busy device at half of its full clock loses 0.5, an idle one nothing. All work is
    assumed to be as slow as the clock."""
    sm_mhz: float = 0.0
    max_sm_mhz: int = 0
    celsius: float | None = None
    limit_watts: float | None = None  # in the last reading, like `default_limit_watts`
    default_limit_watts: float | None = None


def _with(before: ClockLimit, use: DeviceUse, sm_mhz: int, max_sm_mhz: int) -> ClockLimit:
    readings = before.readings + 1
    celsius: float | None = use.celsius
    if before.celsius is not None and celsius is not None:
        celsius = before.celsius + (celsius - before.celsius) / readings
    busy = 1.0 if use.utilization is None else use.utilization
    return ClockLimit(
        readings=readings,
        lost=before.lost + busy * (1 - sm_mhz / max_sm_mhz),
        sm_mhz=before.sm_mhz + (sm_mhz - before.sm_mhz) / readings,
        max_sm_mhz=max_sm_mhz,
        celsius=celsius,
        limit_watts=use.limit_watts,
        default_limit_watts=use.default_limit_watts,
    )


class DeviceReadings:
    """Sums over all readings of a fit's GPU. One thread adds readings, any thread reads the sums."""

    def __init__(self) -> None:
        self.clocked = 0  # readings in which the clock and the reasons for a lower clock are known
        self.lowered: Mapping[str, ClockLimit] = {}  # by cause
        self._energy = 0.0, 0
        self._shared = False
        self._before: tuple[int, float] | None = None

    def add(self, step: int, use: DeviceUse) -> float | None:
        """Add a reading. Return the joules since the previous one, or None if unknown."""
        self._shared |= (use.processes or 0) > 1
        mhz, most = use.sm_mhz, use.max_sm_mhz
        if use.throttled_by is not None and mhz is not None and most:
            self.clocked += 1
            cause = next((CAUSES[reason] for reason in CAUSES if reason in use.throttled_by), None)
            if cause is not None and mhz < most:
                self.lowered = {**self.lowered, cause: _with(self.lowered.get(cause, ClockLimit()), use, mhz, most)}
        before, self._before = self._before, None if use.joules is None else (step, use.joules)
        if before is None or use.joules is None or use.joules < before[1]:  # a reloaded driver counts from 0
            return None
        self._energy = self._energy[0] + use.joules - before[1], self._energy[1] + step - before[0]
        return use.joules - before[1]

    def summary(self) -> EnergySummary | None:
        """Return None after too few steps, or if several processes share the device."""
        joules, steps = self._energy
        return EnergySummary(joules=joules, steps=steps) if steps >= FEWEST_STEPS and not self._shared else None


MOST_READINGS = 64  # if no window takes readings, the oldest are dropped

Reading = Mapping[str, float | None]
"""A value for each name in `RESOURCES`; None if unknown."""

_MEMORY = (RESIDENT, GPU_MEMORY)


class RankUse:
    """Readings of the machine's use. A side thread adds them; one that is added during `take` may be lost."""

    def __init__(self) -> None:
        self._new: deque[Reading] = deque(maxlen=MOST_READINGS)
        self._last: Reading | None = None

    def add(self, reading: Reading) -> None:
        self._last = reading
        self._new.append(reading)

    def take(self) -> dict[str, float]:
        """Return means since the previous call, for memory the maximum; without new readings, the most recent one."""
        new, self._new = self._new, deque(maxlen=MOST_READINGS)
        readings = [*new] or ([] if self._last is None else [self._last])
        columns = {name: [reading.get(name) for reading in readings] for name in RESOURCES}
        measured = {name: [value for value in column if value is not None] for name, column in columns.items()}
        return {name: max(values) if name in _MEMORY else fmean(values) for name, values in measured.items() if values}
