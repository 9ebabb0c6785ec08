"""NVIDIA GPUs of the machine, as NVML lists them, also those that CUDA hides. Only this file imports `pynvml`."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.process import device_use
from perf_callbacks.kernel.process.device_use import DeviceUse


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A GPU in NVML's list."""

    pci: str
    uuid: str | None
    """Without prefix."""
    divided: bool = False
    """True: the GPU is divided into MIG instances, so several ranks may share it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All GPUs."""

    gpus: tuple[Listed, ...] = ()
    unanswered: tuple[str, ...] = ()
    """GPUs that NVML counts but that have failed, or that this process may not use; each with the reason."""
    missing: str | None = None


THROTTLES = {
    0x002: device_use.BY_HAND,
    0x004: device_use.POWER_CAP,
    0x008: device_use.HARDWARE_SLOWDOWN,
    0x010: device_use.SYNC_BOOST,
    0x020: device_use.DRIVER_HEAT,
    0x040: device_use.HARDWARE_HEAT,
    0x080: device_use.POWER_BRAKE,
    0x100: device_use.DISPLAY,
}
"""Reasons for a lower clock, without idleness, by the values of nvmlClocksThrottleReason* or nvmlClocksEventReason*."""


class Monitor:
    """Reads the counters of one GPU or MIG instance until `close`. A MIG instance supports few counters."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml: Any = None
        self._activity: _Activity | None = None
        self._process = os.getpid()
        if uuid is None:
            return
        with guard(let_pass):  # as in `inventory`
            self._nvml = _started()
            for prefix in ("GPU-", "MIG-"):
                with suppress(Exception):  # the GPU is of the other kind, or lost
                    self._activity = _Activity(self._nvml, self._nvml.nvmlDeviceGetHandleByUUID(prefix + bare(uuid)))
                    break

    def read(self) -> DeviceUse:
        """Don't wait for the GPU. A side thread calls this."""
        nvml, activity = self._nvml, self._activity
        if nvml is None or activity is None:
            return DeviceUse()

        def ask(name: str, *arguments: object) -> Any:
            return _answer(lambda: getattr(nvml, name)(activity.handle, *arguments))

        def thousandth(name: str) -> float | None:
            value = ask(name)
            return None if value is None else value / 1000

        rates, memory = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetMemoryInfo")
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        processes = ask("nvmlDeviceGetComputeRunningProcesses")
        own = [
            process.usedGpuMemory
            for process in processes or ()
            if process.pid == os.getpid() and process.usedGpuMemory is not None
        ]
        tensors, bandwidth = activity.read()
        return DeviceUse(
            utilization=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else memory.used,
            own_bytes=sum(own) if own else None,
            processes=None if processes is None else len(processes),
            watts=thousandth("nvmlDeviceGetPowerUsage"),
            limit_watts=thousandth("nvmlDeviceGetEnforcedPowerLimit"),
            default_limit_watts=thousandth("nvmlDeviceGetPowerManagementDefaultLimit"),
            joules=thousandth("nvmlDeviceGetTotalEnergyConsumption"),
            sm_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            max_sm_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            celsius=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttled_by=None if reasons is None else tuple([THROTTLES[bit] for bit in THROTTLES if reasons & bit]),
            tensor_activity=tensors,
            bandwidth_activity=bandwidth,
        )

    def close(self) -> None:
        """Free the GPM sample and shut NVML down. Idempotent."""
        nvml, self._nvml = self._nvml, None
        if nvml is None or self._process != os.getpid():  # NVML may be locked in a forked child, for ever
            return
        if self._activity is not None:
            self._activity.close()
        with suppress(Exception):
            nvml.nvmlShutdown()


class _Activity:
    """Activity between two samples of NVML's GPM (Hopper or later), which are freed even after errors."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self.handle = nvml, handle
        self._before: Any = None
        support = _answer(lambda: nvml.nvmlGpmQueryDeviceSupport(handle))
        self._supported = support is not None and bool(support.isSupportedDevice)

    def read(self) -> tuple[float | None, float | None]:
        """Return both since the last call, from 0 to 1."""
        if not self._supported:
            return None, None
        before, self._before = self._before, _answer(self._sample)
        try:
            shares = None if before is None or self._before is None else _answer(partial(self._shares, before))
        finally:
            self._free(before)
        return (None, None) if shares is None else shares

    def close(self) -> None:
        """Idempotent."""
        self._supported = False
        before, self._before = self._before, None
        self._free(before)

    def _sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        try:
            return self._nvml.nvmlGpmSampleGet(self.handle, sample)
        except Exception:
            self._free(sample)
            raise

    def _shares(self, before: Any) -> tuple[float | None, float | None]:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
        wanted.sample1, wanted.sample2 = before, self._before
        wanted.metrics[0].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        wanted.metrics[1].metricId = nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        nvml.nvmlGpmMetricsGet(wanted)
        tensors, bandwidth = [
            metric.value / 100 if metric.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(metric.value) else None
            for metric in wanted.metrics[:2]
        ]
        return tensors, bandwidth

    def _free(self, sample: Any) -> None:
        if sample is not None:
            _answer(lambda: self._nvml.nvmlGpmSampleFree(sample))


def _answer(ask: Callable[[], Any]) -> Any:
    with suppress(Exception):
        return ask()
    return None


def inventory() -> Inventory:
    """If a GPU doesn't answer, the others are still listed."""
    with guard() as attempt:  # no package, no library, no driver, or versions that don't match
        nvml = _started()
        try:
            return _listed(nvml)
        finally:
            nvml.nvmlShutdown()
    return Inventory(missing=attempt.reason)


def _started() -> Any:
    """Start NVML, which takes a few milliseconds. It counts its users: each start needs an `nvmlShutdown`."""
    import pynvml  # noqa: PLC0415 it takes some milliseconds, and not every machine has a GPU

    pynvml.nvmlInit()
    return pynvml


def _listed(pynvml: Any) -> Inventory:
    gpus, unanswered = list[Listed](), list[str]()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with guard() as attempt:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            bus = pynvml.nvmlDeviceGetPciInfo(handle)
            uuid = _answer(partial(pynvml.nvmlDeviceGetUUID, handle))
            divided = bool(_answer(partial(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)))
            pci = pci_id(bus.domain, bus.bus, bus.device)
            gpus.append(Listed(pci=pci, uuid=None if uuid is None else bare(uuid), divided=divided))
            continue
        unanswered.append(f"GPU {index}: {attempt.reason}")
    return Inventory(gpus=tuple(gpus), unanswered=tuple(unanswered))


def pci_id(domain: int, bus: int, device: int) -> str:
    """Format the PCI id of a GPU as in `/sys`.

    >>> pci_id(0, 0x1B, 0)
    '0000:1b:00.0'
    """
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def bare(uuid: str) -> str:
    """Return a UUID in lower case, without its prefix.

    >>> bare("MIG-ab"), bare("GPU-cd"), bare("ef")
    ('ab', 'cd', 'ef')
    """
    return uuid.removeprefix("MIG-").removeprefix("GPU-").lower()
