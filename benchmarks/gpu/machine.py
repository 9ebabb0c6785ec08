"""What it is measured on."""

import importlib.metadata
import platform
import subprocess
from collections.abc import Iterator

import torch

from gpu.bench import DENSE_BF16, NEEDS_CUDA, Bench, Row, one_line
from perf_callbacks import PerfConfig
from perf_callbacks.host import device, matmul_peak, peak_source

PACKAGES = ("torch", "transformers", "accelerate", "lightning", "nvidia-ml-py", "triton")
ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "power.limit", "temperature.gpu")


def rows(bench: Bench) -> Iterator[Row]:
    yield "Python", platform.python_version()
    for package in PACKAGES:
        yield package, _version(package)
    yield "CUDA, as torch was built", str(torch.version.cuda or NEEDS_CUDA)
    yield "device", device.name(bench.device)
    known = peak_source.find(bench.device, ["bfloat16"], PerfConfig(measure_peak="off"))
    peak = known.peak_flops_per_second("bfloat16") if known is not None else None
    yield "our dense bf16 peak", "—" if known is None or peak is None else f"{peak / 1e12} TFLOPS, {known.source}"
    if not bench.cuda:
        yield "driver, clock, best product", NEEDS_CUDA
        return
    yield "multiprocessors", str(torch.cuda.get_device_properties(bench.device).multi_processor_count)
    yield from zip((f"NVML: {name}, while multiplying" for name in ASKED), _asked(bench), strict=True)
    best = matmul_peak.measure(bench.device, ["bfloat16"])["bfloat16"]
    share = f"{best.flops_per_second / DENSE_BF16:.1%} of 989.5"
    yield "best bf16 product", f"{best.flops_per_second / 1e12:.1f} TFLOPS, {share}, {best.size} x {best.size}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _asked(bench: Bench) -> list[str]:
    """By nvidia-smi, which asks NVML: it comes with every driver."""
    matrix = torch.randn(8192, 8192, device=bench.device, dtype=torch.bfloat16)
    for _ in range(1000):  # more than a second of work, that goes on meanwhile
        torch.mm(matrix, matrix)
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader", "-i", "0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
        return [value.strip() for value in answer.splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError) as error:
        return [one_line(error)] * len(ASKED)
    finally:
        bench.synchronize()
