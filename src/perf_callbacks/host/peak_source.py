"""The peak that this run is compared with: given, looked up, or measured."""

import os
from collections.abc import Iterable

import torch

from perf_callbacks.core import peaks
from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.peaks import Peaks
from perf_callbacks.host import device as devices
from perf_callbacks.host.peak_cache import measured_peaks


def find(device: torch.device, dtypes: Iterable[str], config: PerfConfig) -> Peaks | None:
    """The dense peaks of a device; None where nobody knows, and nobody may measure."""
    if config.peak_tflops is not None:
        return peaks.given(config.peak_tflops)
    known = None if device.type == "cpu" else peaks.lookup(devices.name(device), _processors(device))
    if config.measure_peak == "off" or (known is not None and config.measure_peak == "auto"):
        return known
    local_rank = os.environ.get("LOCAL_RANK", "")
    return measured_peaks(device, dtypes, local_rank=int(local_rank) if local_rank.isdecimal() else 0) or known


def _processors(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
