"""A peak is measured once for all ranks of a machine, and kept."""

import json
import os
import time
from types import SimpleNamespace

import pytest
import torch
from rows import each_row

from perf_callbacks import PerfConfig
from perf_callbacks.flops.peaks import peak_source as module
from perf_callbacks.flops.peaks.matmul_peak import MeasuredPeak
from perf_callbacks.flops.peaks.peak_source import cache_directory, cache_file, forget, measured_peaks, read, write

CPU = torch.device("cpu")


def found(rate=2e11, **changes):
    return MeasuredPeak(flops_per_second=rate, **{"size": 512} | changes)


class Bench:
    """Measures what it is told, and counts how often it is asked."""

    def __init__(self, directory):
        self.directory = directory
        self.asked = []
        self.rate = 2e11

    def measure(self, device, dtypes):
        self.asked.append(list(dtypes))
        return {dtype: found(self.rate) for dtype in dtypes if dtype != "float16"}

    def peaks(self, *dtypes, device=CPU, **options):
        usual = {"directory": self.directory, "measure": self.measure}
        return measured_peaks(device, dtypes or ("float32",), **usual | options)


@pytest.fixture(autouse=True)
def _another_process():
    module.KNOWN.clear()
    yield
    module.KNOWN.clear()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "cache")


@pytest.fixture
def cache(bench):
    return cache_file(CPU, bench.directory)


def test_a_measured_peak_is_labelled_and_kept_for_the_process_and_later_ones(bench):
    peaks = bench.peaks()
    assert (peaks.measured, peaks.by_dtype) == (True, {"float32": 2e11})
    assert peaks.source == "measured on cpu with 1 thread: float32 0.2 TFLOPS at 512 x 512"
    assert bench.peaks() == bench.peaks("torch.float32") == peaks
    module.KNOWN.clear()
    assert bench.peaks() == peaks
    assert bench.asked == [["float32"]]
    (path,) = bench.directory.iterdir()  # no torn file is left behind
    assert json.loads(path.read_text()) == {"float32": {"flops_per_second": 2e11, "size": 512}}


def test_a_dtype_that_can_not_be_measured_is_left_out(bench):
    assert bench.peaks("float16") is None
    assert bench.peaks("float16", "float32", "float8_e4m3fn").by_dtype == {"float32": 2e11}


@pytest.mark.parametrize("days", [-1.1, 30])
def test_a_peak_of_another_day_is_measured_again(bench, cache, days):
    write(cache, {"float32": found(rate=3e11)})
    at = time.time() + days * 86400
    os.utime(cache, (at, at))
    assert bench.peaks().by_dtype == {"float32": 2e11}
    assert read(cache)["float32"].flops_per_second == 2e11


def test_a_peak_that_was_wrong_or_of_other_threads_is_measured_anew(bench, monkeypatch):
    bench.peaks()
    forget(CPU, bench.directory)
    forget(CPU, bench.directory)
    bench.peaks()
    assert len(bench.asked) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    bench.peaks()
    assert len(bench.asked) == 3
    assert len(list(bench.directory.iterdir())) == 2


def test_a_directory_that_can_not_be_written_keeps_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    bench = Bench(tmp_path / "file" / "cache")
    assert bench.peaks().by_dtype == {"float32": 2e11}
    forget(CPU, bench.directory)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(module.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    write(cache_file(CPU), {"float32": found()})
    assert read(cache_file(CPU)) == {}


@each_row(
    "content",
    ["", "{", "[]", "{}", '{"float32": {}}', "\x00", '{"conditions": null, "measured": null}']
    + [
        json.dumps({"float32": {"flops_per_second": rate, "size": 512}})
        for rate in (0, -1, "fast", None, True, float("nan"), float("inf"))
    ]
    + ['{"float32": {"flops_per_second": 2e11, "size": null}}'],
)
def test_a_file_that_makes_no_sense_is_as_none(bench, cache, content):
    module.KNOWN.clear()
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(content)
    assert read(cache) == {}
    assert bench.peaks().by_dtype == {"float32": 2e11}
    assert list(read(cache)) == ["float32"]


@pytest.mark.parametrize(
    ("variable", "expected"), [("XDG_CACHE_HOME", "perf_callbacks"), ("HOME", ".cache/perf_callbacks")]
)
def test_the_cache_is_that_of_the_user(monkeypatch, tmp_path, variable, expected):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_directory() == tmp_path / expected


def test_only_a_dtype_that_is_new_is_measured(bench, cache):
    bench.peaks("float32")
    assert bench.peaks("float32", "bf16").by_dtype == {"float32": 2e11, "bfloat16": 2e11}
    assert bench.asked == [["float32"], ["bfloat16"]]
    assert sorted(read(cache)) == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("threads", "cpus", "quota", "why"),
    [
        (16, 2, None, "the peak of the CPU is not measured: torch has 16 threads for 2 CPUs"),
        (2, 8, 1.5, "the peak of the CPU is not measured: torch has 2 threads for 1.5 CPUs"),
        (2, 8, 2.0, None),
        (2, None, None, None),
    ],
)
def test_a_cpu_with_more_threads_than_cpus_has_no_peak(monkeypatch, threads, cpus, quota, why):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(module, "allowed_cpus", lambda: cpus)
    monkeypatch.setattr(module.topology, "quota", lambda root: quota)
    monkeypatch.setattr(module, "measured_peaks", lambda *_, **__: "measured")
    assert module.crowded(CPU) == why
    assert module.find(CPU, ["float32"], PerfConfig()) == (None if why else "measured")


def test_the_other_ranks_of_a_cpu_do_without_until_the_first_has_measured(bench):
    assert bench.peaks(local_rank=1) is None
    first = bench.peaks()
    module.KNOWN.clear()
    assert bench.peaks(local_rank=1) == first
    assert bench.asked == [["float32"]]


@pytest.mark.parametrize("variable", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"])
def test_the_first_rank_is_known_under_each_launcher(monkeypatch, variable):
    asked = []
    monkeypatch.setattr(module, "measured_peaks", lambda *_, local_rank: asked.append(local_rank))
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"):
        monkeypatch.delenv(name, raising=False)
    module.find(CPU, ["float32"], PerfConfig())
    monkeypatch.setenv(variable, "3")
    module.find(CPU, ["float32"], PerfConfig())
    assert asked == [0, 3]


def test_a_device_of_its_own_is_measured_by_each_rank(bench, monkeypatch):
    monkeypatch.setattr(module.devices.Device, "name", "Imaginary 9000")
    peaks = bench.peaks(device=torch.device("meta"), local_rank=1)
    assert peaks.source.startswith("measured on Imaginary 9000: ")


@each_row(
    ("kind", "name", "properties", "tflops"),
    [
        ("cuda", "NVIDIA GeForce RTX 3080", {"multi_processor_count": 70}, 61.3),
        ("cuda", "AMD Radeon Graphics", {"multi_processor_count": 228, "gcnArchName": "gfx942:sramecc+:xnack-"}, 980.6),
        ("cuda", "AMD Instinct MI300X", {"multi_processor_count": 38, "gcnArchName": "gfx942:sramecc+:xnack-"}, None),
        ("xpu", "Intel(R) Data Center GPU Max 1550", {"max_compute_units": 448, "gpu_subslice_count": 56}, 367),
        ("privateuseone", "Ascend910B3", {"total_memory": 65452113920}, 294.9),
        ("hpu", "GAUDI2", {}, 432),
    ],
)
def test_a_device_is_looked_up_by_its_name_and_how_it_is_built(monkeypatch, kind, name, properties, tflops):
    backend = SimpleNamespace(
        get_device_properties=lambda _: SimpleNamespace(**properties), get_device_name=lambda _: name
    )
    monkeypatch.setattr(torch.version, "hip", "7.0" if "gcnArchName" in properties else None)
    monkeypatch.setattr(torch, "get_device_module", lambda _: backend)
    for module_of, capability in ((torch.cuda, (8, 6)), (torch.xpu, {})):
        monkeypatch.setattr(module_of, "get_device_properties", backend.get_device_properties)
        monkeypatch.setattr(module_of, "get_device_capability", lambda _, capability=capability: capability)
    peaks = module.find(torch.device(kind), ["bfloat16"], PerfConfig(measure_peak="off"))
    assert (None if peaks is None else peaks.by_dtype["bfloat16"] / 1e12) == tflops


@pytest.mark.parametrize("kind", ["mps", "meta", "xla"])
def test_a_device_without_properties_has_no_published_peak(kind):
    assert module.find(torch.device(kind), ["float32"], PerfConfig(measure_peak="off")) is None
