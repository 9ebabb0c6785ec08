"""`perf-callbacks check` on machines whose GPUs are missing, lost, divided or refuse to start. No GPU is there."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from launching import PATHS
from nvml_stub import directory, load
from trainings.runs import unwrapped

from perf_callbacks.commands import main
from perf_callbacks.flops.peaks import peak_source
from perf_callbacks.flops.peaks.peak_rates import Peaks


@pytest.fixture
def stub(monkeypatch):
    return load(monkeypatch)


@pytest.fixture
def check(capsys):
    """The exit status, and what was printed, in one line."""

    def run(*words):
        status = main(["check", *words])
        return status, " ".join(unwrapped(capsys.readouterr().out).split())

    return run


@pytest.fixture
def cuda(monkeypatch):
    """torch sees one GPU."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)


@pytest.fixture
def refuses(monkeypatch, cuda):
    """CUDA doesn't start."""

    def refuse(*_):
        raise RuntimeError("No CUDA GPUs are available")

    for name in ("_lazy_init", "get_device_properties", "get_device_name", "get_device_capability"):
        monkeypatch.setattr(torch.cuda, name, refuse)


@pytest.fixture
def measured(monkeypatch, cuda):
    """A GPU that starts, and the devices whose peak was measured."""
    found = []

    def measure(device, dtypes, **_):
        found.append(device.type)
        return Peaks(dict.fromkeys(dtypes, 1e12), "measured on it: 1 TFLOPS", measured=True)

    gpu = SimpleNamespace(name="NVIDIA Unheard-of", uuid="", multi_processor_count=132, pci_bus_id=16)
    gpu.pci_domain_id = gpu.pci_device_id = 0
    for name, value in {"properties": gpu, "name": gpu.name, "capability": (9, 0)}.items():
        monkeypatch.setattr(torch.cuda, f"get_device_{name}", lambda *_, value=value: value)
    monkeypatch.setattr(peak_source, "measured_peaks", measure)
    return found


@pytest.mark.usefixtures("refuses")
def test_cuda_that_refuses_to_start_is_told_with_what_nvml_lists(check, stub):
    status, printed = check()
    assert status == 1
    assert "Training on cuda would begin with" in printed
    assert "cuda can't be used (RuntimeError: No CUDA GPUs are available). NVML lists 8 GPUs." in printed
    assert "There would be no MFU: cuda can't be used" in printed
    notes = json.loads(check("--json")[1])["device_notes"]
    assert notes == ["cuda can't be used (RuntimeError: No CUDA GPUs are available). NVML lists 8 GPUs."]
    assert stub.started == 0


@pytest.mark.usefixtures("refuses")
def test_a_driver_that_refuses_too_is_told(check, stub):
    stub.has(errors="init=9")
    assert "NVML lists no GPU: NVMLError_DriverNotLoaded: Driver Not Loaded." in check()[1]


def test_a_lost_gpu_of_eight_is_told(check, stub, measured):
    stub.has(errors="*:3=15")
    assert "NVML gets no answer from 1 of 8 GPUs: GPU 3: NVMLError_GpuIsLost: GPU is lost." in check()[1]
    assert measured == []


@pytest.mark.usefixtures("measured")
def test_divided_gpus_are_told(check, stub):
    stub.has(mig=1)
    printed = check()[1]
    assert "MIG divides 8 of 8 GPUs; NVML gives few counters of an instance." in printed


@pytest.mark.usefixtures("stub")
def test_healthy_gpus_are_not_mentioned(check, measured):
    assert json.loads(check("--json")[1])["device_notes"] == []
    assert measured == []


@pytest.mark.usefixtures("stub")
def test_the_peak_of_a_gpu_is_measured_on_request_only(check, measured):
    status, printed = check()
    assert (status, measured) == (0, [])
    assert "A training would measure the peak for MFU; `perf-callbacks check --measure` measures it now" in printed
    status, printed = check("--measure")
    assert (status, measured) == (0, ["cuda"])
    assert "MFU would use a peak of 1.00 TFLOPS" in printed


def test_torch_for_cuda_without_a_driver_is_told(check, stub, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    stub.has(errors="init=12")
    printed = check()[1]
    assert "Training on cpu would begin with" in printed
    assert "torch is built for CUDA 13.0 and finds no GPU. NVML lists no GPU: NVMLError_LibraryNotFound" in printed


def test_torch_without_cuda_beside_gpus_is_told(check, stub):
    assert "this torch is built without CUDA. NVML lists 8 GPUs." in check()[1]


@pytest.mark.slow
def test_pynvml_finds_the_library_by_its_name():
    if directory() is None:
        pytest.skip("no gcc, which compiles the stand-in of NVML")
    environ = {**os.environ, "PYTHONPATH": PATHS, "LD_LIBRARY_PATH": directory(), "NVML_STUB_ERRORS": "*:3=15"}
    words = [sys.executable, "-c", "from perf_callbacks.commands import main; main(['check', '--json'])"]
    done = subprocess.run(words, env=environ | {"PERF_CALLBACKS_PEAK_TFLOPS": "1"}, stdout=subprocess.PIPE, check=True)
    first, second = json.loads(done.stdout)["device_notes"]
    assert first == "this torch is built without CUDA. NVML lists 7 GPUs."
    assert second.startswith("NVML gets no answer from 1 of 8 GPUs: GPU 3")
