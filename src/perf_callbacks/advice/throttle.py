"""Rule `throttle`: heat, power or a setting holds the device's clock below its maximum."""

from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.kernel.process import device_use
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.memory.device_readings import HEAT, ClockLimit

CAUSE = "throttle"

ENOUGH_READINGS, ENOUGH_LOWERED = 6, 3
"""Readings of the device's clock, and those with a lowered clock. There is one every ten seconds."""

MUCH_LOWER = 0.6
"""The power limit is the cause only if the mean clock is below this part of the maximum.

At full load, a device often reaches it. A power limit below the default is reported in any case.
"""

REMEDIES = {
    HEAT: ("Heat", "better cooling of the device: its air flow, its fans, the temperature of the room"),
    device_use.POWER_BRAKE: ("The power supply", "a look at the power supply, which asks the device for less power"),
    device_use.HARDWARE_SLOWDOWN: (
        "The hardware",
        "a look at cooling and power supply: `nvidia-smi -q -d PERFORMANCE` shows what is active",
    ),
    device_use.BY_HAND: (
        "A setting",
        "`nvidia-smi -rgc`, which resets locked clocks, or `-rac`, which resets application clocks",
    ),
}


@timed
def throttled(facts: Facts, _measured: Measured) -> Finding | None:
    """The cause that lowered the clock most. Work that waits for memory or the host doesn't depend on the clock."""
    if facts.accelerator is None or facts.readings is None:
        return None
    by_cause, readings = facts.readings.lowered, facts.readings.clocked  # in this order: a side thread adds readings
    if readings < ENOUGH_READINGS:
        return None
    reasons = [
        _finding(cause, lowered, readings) for cause, lowered in by_cause.items() if lowered.readings >= ENOUGH_LOWERED
    ]
    return max(filter(None, reasons), key=lambda finding: finding.share or 0.0, default=None)


def _finding(cause: str, lowered: ClockLimit, readings: int) -> Finding | None:
    share: float | None = lowered.lost / readings
    if cause == device_use.POWER_CAP:
        limit, default = lowered.limit_watts, lowered.default_limit_watts
        watts = "" if limit is None else f" of {limit:.0f} W"
        who, remedy = f"The power limit{watts}", "`nvidia-smi -q -d POWER`, which shows if a higher limit is allowed"
        if limit is not None and default is not None and limit < default:
            who += f", below the default of {default:.0f} W,"
            remedy = f"`nvidia-smi -pl {default:.0f}`, if cooling and power supply allow it"
        elif lowered.sm_mhz >= MUCH_LOWER * lowered.max_sm_mhz:
            return None
        else:
            share = None  # the device works at its limit, and a higher limit may not exist
    else:
        who, remedy = REMEDIES[cause]
    warm = f" at {lowered.celsius:.0f} °C" if cause == HEAT and lowered.celsius is not None else ""
    evidence = (
        f"{who} lowered the device's clock in {lowered.readings / readings:.0%} of {readings} readings, "
        f"to {lowered.sm_mhz:,.0f} of {lowered.max_sm_mhz:,} MHz on average{warm}"
    )
    return finding(CAUSE, share, evidence, remedy)
