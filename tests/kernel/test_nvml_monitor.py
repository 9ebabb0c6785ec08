"""The use of a GPU, from an NVML that the test has made up."""

import os
import sys
from types import SimpleNamespace

import pytest

from perf_callbacks.kernel.process.nvml import GpuUse, Monitor


class NVMLError(Exception):
    """NVML's own."""


def a_pynvml(**changes):
    """`pynvml` with one GPU; None instead of an answer: not supported."""
    began = []

    def answer(value):
        def ask(_handle, *_):
            if value is None:
                raise NVMLError("Not Supported")
            return value

        return ask

    def handle(uuid):
        if uuid != changes.get("uuid_of_nvml", "GPU-ab"):
            raise NVMLError("Not Found")
        return 1

    own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=changes.get("own", 3 * 10**9))
    other = SimpleNamespace(pid=-1, usedGpuMemory=10**9)
    use, memory = changes.get("use", SimpleNamespace(gpu=75)), changes.get("memory", SimpleNamespace(used=5 * 10**9))
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        began=began,
        nvmlInit=lambda: began.append("began"),
        nvmlShutdown=lambda: began.append("ended"),
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetUtilizationRates=answer(use),
        nvmlDeviceGetMemoryInfo=answer(memory),
        nvmlDeviceGetPowerUsage=answer(changes.get("power", 412_500)),
        nvmlDeviceGetClockInfo=answer(changes.get("clock", 1980)),
        nvmlDeviceGetCurrentClocksThrottleReasons=answer(changes.get("reasons", 0x1 | 0x4 | 0x40)),
        nvmlDeviceGetComputeRunningProcesses=answer(changes.get("processes", [own, other])),
    )


def read(monkeypatch, **changes):
    fake = a_pynvml(**changes)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monitor = Monitor("ab")
    use = monitor.read()
    monitor.close()
    monitor.close()
    assert fake.began == ["began", "ended"]
    assert monitor.read() == GpuUse()
    return use


def test_a_gpu_tells_its_use(monkeypatch):
    assert read(monkeypatch) == GpuUse(
        utilization=0.75,
        memory_bytes=5 * 10**9,
        own_bytes=3 * 10**9,
        watts=412.5,
        sm_mhz=1980,
        throttled_by=("power cap", "heat, by the hardware"),
    )


@pytest.mark.parametrize(("name", "found"), [("MIG-ab", True), ("GPU-cd", False)])
def test_a_device_is_found_by_its_uuid(monkeypatch, name, found):
    assert (read(monkeypatch, uuid_of_nvml=name) != GpuUse()) is found


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"use": None}, "utilization"),
        ({"memory": None}, "memory_bytes"),
        ({"power": None}, "watts"),
        ({"clock": None}, "sm_mhz"),
        ({"processes": None}, "own_bytes"),
        ({"own": None}, "own_bytes"),
        ({"processes": []}, "own_bytes"),
    ],
)
def test_what_a_gpu_does_not_support_is_unknown(monkeypatch, changes, unknown):
    use = read(monkeypatch, **changes)
    assert getattr(use, unknown) is None
    assert use != GpuUse()


def test_reasons_that_are_not_supported_are_none(monkeypatch):
    assert read(monkeypatch, reasons=None).throttled_by == ()


def test_without_nvml_nothing_is_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monitor = Monitor("ab")
    assert monitor.read() == GpuUse()
    monitor.close()


def test_without_a_gpu_nvml_is_not_asked(monkeypatch):
    fake = a_pynvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert Monitor(None).read() == GpuUse()
    assert fake.began == []
