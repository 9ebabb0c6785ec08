"""Energy and lowered clocks of a fit's device, from readings of its counters."""

from collections.abc import Mapping
from dataclasses import dataclass

from perf_callbacks.kernel.process import counters
from perf_callbacks.kernel.process.counters import DeviceUse
from perf_callbacks.kernel.records.summary_parts import EnergySummary

FEWEST_STEPS = 20
"""Fewest steps for the energy of a step. A reading falls anywhere in a step, so the number of steps between the first
reading and the last is wrong by less than one."""

HEAT = "heat"

CAUSES = {
    counters.HARDWARE_HEAT: HEAT,
    counters.DRIVER_HEAT: HEAT,
    counters.POWER_BRAKE: counters.POWER_BRAKE,
    counters.HARDWARE_SLOWDOWN: counters.HARDWARE_SLOWDOWN,
    counters.BY_HAND: counters.BY_HAND,
    counters.POWER_CAP: counters.POWER_CAP,
}
"""Causes of a lower clock by the device's reasons, the gravest first. A reading counts for its gravest cause only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lowered:
    """Readings in which one cause lowered the clock. The clock and the temperature are means over these readings."""

    readings: int
    lost: float
    """Sum over the readings: the share of time that a full clock could save, if all work ran at the pace of the clock.
    A device that was idle for a part of a reading loses nothing in this part."""
    sm_mhz: float
    max_sm_mhz: int
    celsius: float | None
    limit_watts: float | None
    """Power limit at the last of the readings, like `default_limit_watts`."""
    default_limit_watts: float | None


def _with(before: Lowered | None, use: DeviceUse, sm_mhz: int, max_sm_mhz: int) -> Lowered:
    """Add a reading with these clocks."""
    readings, lost, mean = 1, 0.0, 0.0
    celsius: float | None = use.celsius
    busy = 1.0 if use.utilization is None else use.utilization
    if before is not None:
        readings, lost, mean = 1 + before.readings, before.lost, before.sm_mhz
        if before.celsius is not None and celsius is not None:
            celsius = before.celsius + (celsius - before.celsius) / readings
    return Lowered(
        readings=readings,
        lost=lost + busy * (1 - sm_mhz / max_sm_mhz),
        sm_mhz=mean + (sm_mhz - mean) / readings,
        max_sm_mhz=max_sm_mhz,
        celsius=celsius,
        limit_watts=use.limit_watts,
        default_limit_watts=use.default_limit_watts,
    )


class DeviceReadings:
    """Sums over the readings of a fit. One thread adds readings; any thread may read the sums."""

    def __init__(self) -> None:
        self.clocked = 0
        """Number of readings with known clocks and reasons."""
        self.lowered: Mapping[str, Lowered] = {}
        """Readings with a lower clock, by cause."""
        self._energy = 0.0, 0
        self._shared = False
        self._before: tuple[int, float] | None = None

    def add(self, step: int, use: DeviceUse) -> float | None:
        """Add a reading after `step` steps. Return the joules since the previous reading; None if unknown."""
        self._shared |= (use.processes or 0) > 1
        mhz, most = use.sm_mhz, use.max_sm_mhz
        if use.throttled_by is not None and mhz is not None and most:
            self.clocked += 1
            cause = next((CAUSES[reason] for reason in CAUSES if reason in use.throttled_by), None)
            if cause is not None and mhz < most:
                self.lowered = {**self.lowered, cause: _with(self.lowered.get(cause), use, mhz, most)}
        before, self._before = self._before, None if use.joules is None else (step, use.joules)
        if before is None or use.joules is None or use.joules < before[1]:  # a reloaded driver counts from 0
            return None
        self._energy = self._energy[0] + use.joules - before[1], self._energy[1] + step - before[0]
        return use.joules - before[1]

    def summary(self) -> EnergySummary | None:
        """Return the energy. None: unknown, too few steps, or several processes share the device."""
        joules, steps = self._energy
        return EnergySummary(joules=joules, steps=steps) if steps >= FEWEST_STEPS and not self._shared else None
