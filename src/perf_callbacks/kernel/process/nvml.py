"""NVIDIA GPUs of the machine, as NVML lists them, including GPUs that CUDA hides from this process.

Only this file imports `pynvml`, and only when a function needs it. Without NVML the list is empty, and a monitor reads
nothing.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass, suppress


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A GPU in NVML's list."""

    pci: str
    """PCI id as in `/sys`."""
    uuid: str
    """UUID without prefix."""
    divided: bool = False
    """True: the GPU is divided into MIG instances, so several ranks may share it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All GPUs."""

    gpus: tuple[Listed, ...] = ()
    missing: str | None = None
    """Reason why NVML lists no GPU."""


THROTTLES = {
    0x002: "clocks set by hand",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "heat, by the driver",
    0x040: "heat, by the hardware",
    0x080: "power brake",
    0x100: "display clocks",
}
"""Reasons for a lower clock: nvmlClocksThrottleReason* and nvmlClocksEventReason* in nvml.h. Idleness is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """Use of a GPU by all processes on it. None: unknown."""

    utilization: float | None = None
    """From 0 to 1."""
    memory_bytes: int | None = None
    own_bytes: int | None = None
    """Memory of this process. Unknown in many containers, where NVML has other process ids."""
    watts: float | None = None
    sm_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()


class Monitor:
    """Reads the use of one GPU until it is closed."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if uuid is None:
            return
        with guard(let_pass):  # as in `inventory`
            self._nvml = _started()
            for prefix in ("GPU-", "MIG-"):
                with suppress(Exception):  # the GPU is of the other kind, or lost
                    self._handle = self._handle or self._nvml.nvmlDeviceGetHandleByUUID(prefix + bare(uuid))

    def read(self) -> GpuUse:
        """Read all values that this GPU supports."""
        nvml, handle = self._nvml, self._handle
        if nvml is None or handle is None:
            return GpuUse()
        busy = _answer(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        milliwatts = _answer(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        reasons = _answer(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
        processes = _answer(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        own = [one.usedGpuMemory for one in processes if one.pid == os.getpid() and one.usedGpuMemory is not None]
        return GpuUse(
            utilization=None if busy is None else busy / 100,
            memory_bytes=_answer(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            own_bytes=sum(own) if own else None,
            watts=None if milliwatts is None else milliwatts / 1000,
            sm_mhz=_answer(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            throttled_by=tuple([name for bit, name in THROTTLES.items() if reasons & bit]),
        )

    def close(self) -> None:
        """Close NVML. Idempotent."""
        found, self._nvml = self._nvml, None
        if found is not None:
            with suppress(Exception):
                found.nvmlShutdown()


def _answer(ask: Callable[[], Any]) -> Any:
    """Return an answer of NVML; None if this GPU doesn't support the query."""
    with suppress(Exception):
        return ask()
    return None


def inventory() -> Inventory:
    """List the GPUs."""
    with guard() as attempt:  # no package, no library, no driver, or versions that don't match
        nvml = _started()
        try:
            return Inventory(gpus=_gpus(nvml))
        finally:
            nvml.nvmlShutdown()
    return Inventory(missing=attempt.reason)


def _started() -> Any:
    """Start NVML, which takes a few milliseconds. NVML counts its users: each start needs an `nvmlShutdown`."""
    import pynvml  # noqa: PLC0415 it takes some milliseconds, and not every machine has a GPU

    pynvml.nvmlInit()
    return pynvml


def _gpus(pynvml: Any) -> tuple[Listed, ...]:
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            bus = pynvml.nvmlDeviceGetPciInfo(handle)
        except pynvml.NVMLError:  # this GPU is lost, or this process may not use it
            continue
        pci, uuid = pci_id(bus.domain, bus.bus, bus.device), bare(pynvml.nvmlDeviceGetUUID(handle))
        divided = bool(_answer(partial(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)))
        found.append(Listed(pci=pci, uuid=uuid, divided=divided))
    return tuple(found)


def pci_id(domain: int, bus: int, device: int) -> str:
    """Format the PCI id of a GPU as in `/sys`.

    >>> pci_id(0, 0x1B, 0)
    '0000:1b:00.0'
    """
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def bare(uuid: str) -> str:
    """Return a UUID without its prefix.

    >>> bare("MIG-ab"), bare("GPU-cd"), bare("ef")
    ('ab', 'cd', 'ef')
    """
    return uuid.removeprefix("MIG-").removeprefix("GPU-").lower()
