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
    """From 0 to 1."""
    memory_bytes: int | None = None
    own_bytes: int | None = None
    """Memory of this process on the device. In many containers, the memory of this process is unknown, because the
    driver uses different process ids than the container."""
    processes: int | None = None
    """Number of processes that compute on the device. In a container, the driver may hide some processes."""
    watts: float | None = None
    limit_watts: float | None = None
    """Power limit in force."""
    default_limit_watts: float | None = None
    """Factory setting of the power limit."""
    joules: float | None = None
    """Energy that the whole device has used since its driver was loaded. Only differences between readings are
    meaningful."""
    sm_mhz: int | None = None
    max_sm_mhz: int | None = None
    celsius: int | None = None
    throttled_by: tuple[str, ...] | None = None
    """Reasons for a lower clock."""
    tensor_activity: float | None = None
    """Share of the time since the previous reading in which tensor cores worked, from 0 to 1."""
    bandwidth_activity: float | None = None
    """Share of the memory's bandwidth that was used since the previous reading, from 0 to 1."""
