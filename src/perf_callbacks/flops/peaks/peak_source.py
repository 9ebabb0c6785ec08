"""The peak FLOP/s of a device: the user's setting, a published peak, or a measured one.

All ranks of a machine share its CPU: only the first one measures it, at most once a day, and writes a file that the
others read; until then, they don't know it. Each rank with a GPU measures its own, unless the file has it.
"""

import hashlib
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import torch

from perf_callbacks.flops.peaks import matmul_peak, peak_rates as peaks
from perf_callbacks.flops.peaks.matmul_peak import MeasuredPeak
from perf_callbacks.flops.peaks.peak_rates import Peaks, canonical
from perf_callbacks.kernel.clock import unix_time
from perf_callbacks.kernel.fit.cache import cache_directory
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process import device as devices, topology
from perf_callbacks.kernel.process.cpu_facts import local_rank
from perf_callbacks.kernel.process.processes import allowed_cpus
from perf_callbacks.kernel.records import atomic_file
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.kernel.units import DAY_SECONDS, TERA


def find(device: torch.device, dtypes: Iterable[str], config: PerfConfig) -> Peaks | None:
    if config.peak_tflops is not None:
        return peaks.given(config.peak_tflops)
    here = devices.device_at(device)
    built = here.features()
    published = None if device.type == "cpu" else peaks.lookup(here.name, built.multiprocessors, built.architecture)
    if config.measure_peak == "off" or (published is not None and config.measure_peak == "auto") or crowded(device):
        return published
    return measured_peaks(device, dtypes, local_rank=local_rank(os.environ)) or published


def crowded(device: torch.device) -> str | None:
    """Return why the peak of a CPU can't be measured: torch has more threads than CPUs."""
    if device.type != "cpu":
        return None
    threads, cpus, limit = torch.get_num_threads(), allowed_cpus(), topology.quota(Path("/"))
    free = min([number for number in (cpus, limit) if number is not None], default=math.inf)
    if threads <= free:
        return None
    return f"the peak of the CPU is not measured: torch has {threads} threads for {free:g} CPU{'s' * (free != 1)}"


def cache_file(device: torch.device, directory: Path | None = None) -> Path:
    conditions = (
        platform.node(),
        devices.device_at(device).name,
        torch.get_num_threads(),
        allowed_cpus(),
        str(torch.__version__),
        torch.get_float32_matmul_precision(),
    )
    name = hashlib.sha256(msgspec.json.encode(conditions)).hexdigest()[:16]
    return (directory or cache_directory()) / f"peak-{name}.json"


def read(path: Path) -> dict[str, MeasuredPeak]:
    """Return nothing if the file is older than a day, missing or unreadable."""
    with suppress(OSError, ValueError, msgspec.DecodeError, RecursionError):
        if abs(unix_time() - path.stat().st_mtime) <= DAY_SECONDS:  # a clock may have been ahead
            peaks = msgspec.json.decode(path.read_bytes(), type=dict[str, MeasuredPeak])
            return {name: peak for name, peak in peaks.items() if peak.flops_per_second > 0}
    return {}


def write(path: Path, measured: Mapping[str, MeasuredPeak]) -> None:
    """Errors are ignored."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.replace(path, msgspec.json.encode(measured))


KNOWN: dict[Path, dict[str, MeasuredPeak]] = {}  # measured or read by this process, by the path of the file


def measured_peaks(
    device: torch.device,
    dtypes: Iterable[str],
    *,
    local_rank: int = 0,
    directory: Path | None = None,
    measure: Callable[[torch.device, Iterable[str]], dict[str, MeasuredPeak]] = matmul_peak.measure,
) -> Peaks | None:
    path = cache_file(device, directory)
    remembered = KNOWN.setdefault(path, {})
    names = [name for name in map(canonical, dtypes) if name in matmul_peak.DTYPES]
    if missing := [name for name in names if name not in remembered]:
        remembered.update(read(path))
        missing = [name for name in missing if name not in remembered]
        if missing and (local_rank == 0 or device.type != "cpu"):
            remembered.update(measure(device, missing))
            write(path, remembered)
    chosen = {name: remembered[name] for name in names if name in remembered}
    return _described(chosen, device) if chosen else None


def forget(device: torch.device, directory: Path | None = None) -> None:
    path = cache_file(device, directory)
    KNOWN.pop(path, None)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _described(measured: Mapping[str, MeasuredPeak], device: torch.device) -> Peaks:
    by_dtype = {name: it.flops_per_second for name, it in measured.items()}
    rates = ", ".join(
        f"{name} {it.flops_per_second / TERA:.3g} TFLOPS at {it.size} x {it.size}" for name, it in measured.items()
    )
    name, threads = devices.device_at(device).name, torch.get_num_threads()
    on = f"cpu with {threads} thread{'s' * (threads > 1)}" if name == "cpu" else name
    return Peaks(by_dtype, f"measured on {on}: {rates}", measured=True)
