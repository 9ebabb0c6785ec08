"""GPUs and their counters, from a stand-in of NVML in C that `pynvml` calls through ctypes. No GPU is there."""

import copy
import dataclasses
import os
import sys

import pytest
from nvml_stub import INSTANCE, load, uuid
from rows import each_row

from perf_callbacks.kernel.process.device_use import DeviceUse
from perf_callbacks.kernel.process.nvml import Listed, Monitor, inventory


@pytest.fixture
def stub(monkeypatch):
    return load(monkeypatch)


def listed(*but, **known):
    numbers = [number for number in range(8) if number not in but]
    return tuple([Listed(pci=f"0000:{16 + number:02x}:00.0", uuid=uuid(number), **known) for number in numbers])


def test_gpus_are_listed_as_whole_or_divided(stub):
    assert inventory().gpus == listed()
    stub.has(mig=1)
    assert inventory().gpus == listed(divided=True)
    stub.has(errors="mig:3=3")  # it doesn't know MIG
    assert [gpu.divided for gpu in inventory().gpus] == [place != 3 for place in range(8)]
    assert stub.started == 0


def test_a_gpu_without_a_uuid_keeps_its_pci_id(stub):
    for errors in ("uuid:3=15", "uuid:3=999"):
        stub.has(errors=errors)
        gpus = inventory().gpus
        assert [gpu.pci for gpu in gpus] == [gpu.pci for gpu in listed()]
        assert [gpu.uuid for gpu in gpus if gpu.uuid is None] == [None]


def test_a_lost_gpu_leaves_the_others_listed(stub):
    for errors in ("*:3=15", "handle:3=15", "pci:3=15"):
        stub.has(errors=errors)
        machine = inventory()
        assert machine.gpus == listed(3)
        assert machine.unanswered == ("GPU 3: NVMLError_GpuIsLost: GPU is lost",)
        assert (machine.missing, stub.started) == (None, 0)


def test_a_driver_that_refuses_says_why(stub):
    for errors, why in (("init=9", "Driver Not Loaded"), ("count=999", "Unknown Error")):
        stub.has(errors=errors)
        machine = inventory()
        assert (machine.gpus, why in machine.missing, stub.started) == ((), True, 0)


FULL = DeviceUse(
    utilization=0.75,
    memory_bytes=5 * 10**9,
    own_bytes=3 * 10**9,
    processes=1,
    watts=412.5,
    limit_watts=700.0,
    default_limit_watts=700.0,
    sm_mhz=1980,
    max_sm_mhz=1980,
    celsius=88,
    throttled_by=(),
)
"""The first reading of a healthy GPU, without its energy."""


def without_energy(use):
    return dataclasses.replace(use, joules=None)


@pytest.fixture
def monitor(stub):
    made = Monitor(uuid(2))
    yield made
    made.close()
    made.close()
    assert made.read() == DeviceUse()
    assert (stub.started, stub.samples) == (0, 0)


def test_a_gpu_has_all_counters_and_activity_from_the_second_reading(monitor):
    first, second = monitor.read(), monitor.read()
    assert without_energy(first) == FULL
    assert without_energy(second) == dataclasses.replace(FULL, tensor_activity=0.625, bandwidth_activity=0.25)
    assert second.joules - first.joules == 4000.0


def test_reasons_have_names(monitor, stub):
    stub.has(reasons=0x1 | 0x4 | 0x40, mhz=1200)
    assert (monitor.read().throttled_by, monitor.read().sm_mhz) == (("power cap", "heat, by the hardware"), 1200)


@each_row(
    ("function", "fields"),
    [
        ("utilization", {"utilization"}),
        ("memory", {"memory_bytes"}),
        ("processes", {"own_bytes", "processes"}),
        ("power", {"watts"}),
        ("limit", {"limit_watts", "default_limit_watts"}),
        ("energy", {"joules"}),
        ("clock", {"sm_mhz", "max_sm_mhz"}),
        ("temperature", {"celsius"}),
        ("reasons", {"throttled_by"}),
        ("gpm", {"tensor_activity", "bandwidth_activity"}),
        ("gpm_support", {"tensor_activity", "bandwidth_activity"}),
        ("sample", {"tensor_activity", "bandwidth_activity"}),
        ("metrics", {"tensor_activity", "bandwidth_activity"}),
        ("tensor", {"tensor_activity"}),
        ("bandwidth", {"bandwidth_activity"}),
    ],
)
def test_a_counter_that_is_not_supported_is_unknown(stub, function, fields):
    stub.has(errors=f"{function}=3")
    monitor = Monitor(uuid(2))
    monitor.read()
    use = dataclasses.asdict(monitor.read())
    monitor.close()
    assert {name for name, value in use.items() if value is None} == fields
    assert (stub.started, stub.samples) == (0, 0)


def test_a_gpu_that_is_lost_later_is_unknown_until_it_is_back(monitor, stub):
    monitor.read()
    stub.has(errors="*=15")
    assert monitor.read() == monitor.read() == DeviceUse()
    stub.has(errors="")
    assert without_energy(monitor.read()) == FULL  # activity needs two readings in a row
    assert monitor.read().tensor_activity == 0.625


def test_an_instance_has_memory_and_processes_only(stub):
    stub.has(mig=1)
    monitor = Monitor(INSTANCE)
    monitor.read()
    assert monitor.read() == DeviceUse(memory_bytes=5 * 10**9, own_bytes=3 * 10**9, processes=1)
    monitor.close()
    assert (stub.started, stub.samples) == (0, 0)


def test_memory_of_other_processes_is_not_counted_as_own(monitor, stub):
    stub.has(processes=3)
    assert (monitor.read().processes, monitor.read().own_bytes) == (3, 3 * 10**9)
    stub.has(processes=0)
    assert (monitor.read().processes, monitor.read().own_bytes) == (0, None)


def test_a_gpu_that_does_not_answer_has_no_counters(stub, monkeypatch):
    for index, errors in ((2, "init=9"), (2, "handle:2=15"), (9, "")):  # NVML doesn't list the last
        stub.has(errors=errors)
        monitor = Monitor(uuid(index))
        assert monitor.read() == DeviceUse()
        monitor.close()
        assert stub.started == 0
    assert (Monitor(None).read(), stub.started) == (DeviceUse(), 0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monitor = Monitor(uuid(2))
    assert monitor.read() == DeviceUse()
    monitor.close()


def test_a_forked_child_leaves_nvml_alone(monitor, stub, monkeypatch):
    monitor.read()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        copy.copy(monitor).close()
        assert (stub.started, stub.samples) == (1, 1)
