"""Hardware counters of a device, in one form for all vendors. Today only `nvml.py` reads such counters."""

from dataclasses import dataclass

BY_HAND, POWER_CAP, POWER_BRAKE = "clocks set by hand", "power cap", "power brake"
HARDWARE_SLOWDOWN, SYNC_BOOST, DISPLAY = "hardware slowdown", "sync boost", "display clocks"
DRIVER_HEAT, HARDWARE_HEAT = "heat, by the driver", "heat, by the hardware"
"""Reasons for a lower clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """Use of a device by all processes on it. None: unknown."""

    utilization: float | None = None
    memory_bytes: int | None = None
    own_bytes: int | None = None
    """Of this process. Unknown in many containers, where the driver uses different process ids."""
    processes: int | None = None
    """That compute on the device. In a container, the driver may hide some."""
    watts: float | None = None
    limit_watts: float | None = None
    default_limit_watts: float | None = None
    """Factory setting."""
    joules: float | None = None
    """Of the whole device since its driver was loaded: only differences have a meaning."""
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    celsius: int | None = None
    throttled_by: tuple[str, ...] | None = None
    tensor_activity: float | None = None
    """Share of the time since the previous reading in which tensor cores worked."""
    bandwidth_activity: float | None = None
    """Share of the memory's bandwidth since the previous reading."""
