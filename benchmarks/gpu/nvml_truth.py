"""Counters of a GPU, read from NVML by the shortest way: the truth for the package's own readings."""

import time
from typing import Any, NamedTuple

from gpu.bench import Bench, MissingError
from perf_callbacks.kernel.process import device

SIMULATED_WATTS = 300.0


class Reading(NamedTuple):
    """Counters at one moment. None: the device has no such counter."""

    joules: float | None = None
    """Energy since the driver was loaded."""
    watts: float | None = None
    """Power, a mean over the last second on some chips."""
    reasons: int | None = None
    """Bits of reasons for a lower clock."""
    sm_mhz: int | None = None


class Nvml:
    """The GPU under test, by `pynvml`."""

    def __init__(self, uuid: str) -> None:
        """Start NVML. Raises `MissingError` if there is none."""
        try:
            import pynvml
        except ImportError as error:
            raise MissingError("needs the package nvidia-ml-py") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            raise MissingError(f"NVML does not answer: {error}") from error
        self.refusals: dict[str, str] = {}
        """Functions that this GPU refused, with the reasons."""

    def read(self) -> Reading:
        """Read all counters."""
        milli_joules, milli_watts = (
            self._ask("nvmlDeviceGetTotalEnergyConsumption"),
            self._ask("nvmlDeviceGetPowerUsage"),
        )
        return Reading(
            joules=None if milli_joules is None else milli_joules / 1000,
            watts=None if milli_watts is None else milli_watts / 1000,
            reasons=self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
        )

    def limits(self) -> str:
        """Say the limit of power that is in force, and the usual one."""
        names = ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit")
        watts = [self._ask(name) for name in names]
        return " of ".join("—" if one is None else f"{one / 1000:.0f} W" for one in watts)

    def _ask(self, name: str, *arguments: object) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError) as error:
            self.refusals[name] = str(error)
            return None

    def gpm_sample(self) -> Any:
        """Take a sample of GPM. Raises what NVML raises."""
        nvml = self._nvml
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise MissingError("this GPU has no GPM")
        return nvml.nvmlGpmSampleGet(self._handle, nvml.nvmlGpmSampleAlloc())

    def gpm_shares(self, before: Any, after: Any) -> dict[str, float | None]:
        """Return activities between two samples, from 0 to 1, and free the samples. None: refused."""
        nvml = self._nvml
        wanted = {
            "multiprocessors": nvml.NVML_GPM_METRIC_SM_UTIL,
            "tensor cores": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            "bandwidth of memory": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        }
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
        request.sample1, request.sample2 = before, after
        for place, number in enumerate(wanted.values()):
            request.metrics[place].metricId = number
        nvml.nvmlGpmMetricsGet(request)
        metrics = [*zip(wanted, request.metrics, strict=False)]
        shares = {
            name: one.value / 100 if one.nvmlReturn == nvml.NVML_SUCCESS and one.value >= 0 else None
            for name, one in metrics
        }
        for sample in (before, after):
            nvml.nvmlGpmSampleFree(sample)
        return shares

    def close(self) -> None:
        """Close NVML."""
        self._nvml.nvmlShutdown()


class Simulated:
    """Counters of the simulated device: a constant power."""

    refusals: dict[str, str] = {}  # noqa: RUF012 there are none

    def read(self) -> Reading:
        """Read the counters."""
        return Reading(joules=time.perf_counter() * SIMULATED_WATTS, watts=SIMULATED_WATTS, reasons=4, sm_mhz=1000)

    def limits(self) -> str:
        """Say the limit of power."""
        return f"{SIMULATED_WATTS:.0f} W, simulated"

    def gpm_sample(self) -> Any:
        """Refuse."""
        raise MissingError("the simulated device has no GPM")

    def gpm_shares(self, _before: Any, _after: Any) -> dict[str, float | None]:
        """Return nothing."""
        return {}

    def close(self) -> None:
        """Do nothing."""


def counters_of(bench: Bench) -> Nvml | Simulated:
    """The counters of the device under test. Raises `MissingError` if there are none."""
    if bench.simulated:
        return Simulated()
    uuid = device.of(bench.device).features().uuid
    if uuid is None:
        raise MissingError("a device without UUID has no NVML")
    return Nvml(uuid)
