"""Measure the highest FLOP/s at which a device multiplies matrices; by default only of unknown peaks.

The measurement multiplies square matrices of several sizes for about a second. The fastest round counts: other work can
only slow one down. Threads and float32 precision are those of the process, no random numbers are drawn, and the host
waits for the device. On a CPU, a round counts only if torch's threads had a CPU for most of it, and the process used no
more CPU time than there is: else its clock is wrong.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from perf_callbacks.kernel.clock import perf_counter, process_time
from perf_callbacks.kernel.foreign_errors import suppress

SECONDS = 0.9  # for all dtypes together

SIZES = {"cpu": (256, 512, 1024, 2048)}  # rows and columns of the square matrices; each size is twice the one before
DEVICE_SIZES = (1024, 2048, 4096, 8192)

GROWTH = 8  # factor of a round's time if the size doubles

CALLS = 8  # multiplications queued at once, so that the device doesn't wait for the host between them

MOST = 0.5  # least share of the CPU time that torch's threads could use in a round that counts

INEXACT = 1.1  # for the difference between the clocks of CPU time and time

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "tfloat32": torch.float32,  # if the run allows it
}
"""Names in the table of peaks. Only these can be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPeak:
    """Highest measured FLOP/s of a dtype."""

    flops_per_second: float
    size: int  # rows and columns of the square matrices


class Matmuls:
    """Multiplies matrices on a device, which `prepare` allocates."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.sizes: tuple[int, ...] = SIZES.get(device.type, DEVICE_SIZES)
        self._device = device
        self._dtype = dtype
        self._calls = 1 if device.type == "cpu" else CALLS

    def flops(self, size: int) -> float:
        return 2.0 * size**3 * self._calls

    def prepare(self, size: int) -> None:
        ramp = torch.linspace(-1, 1, size * size, dtype=torch.float32, device=self._device).to(self._dtype)
        left, right = ramp.view(size, size), ramp.flip(0).view(size, size)
        self._matrices = left, right, torch.empty_like(left)

    def run(self) -> None:
        left, right, result = self._matrices
        for _ in range(self._calls):
            torch.mm(left, right, out=result)
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def measure(
    device: torch.device,
    dtypes: Iterable[str],
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = perf_counter,
    cpu_clock: Callable[[], float] | None = None if os.name == "nt" else process_time,
    make: Callable[[torch.device, torch.dtype], Matmuls] = Matmuls,
) -> dict[str, MeasuredPeak]:
    """Unsupported dtypes are left out. `cpu_clock` is None if the system's is too coarse, as on Windows."""
    wanted = [name for name in dict.fromkeys(dtypes) if name in DTYPES]
    peaks: dict[str, MeasuredPeak] = {}
    with torch.no_grad():
        for name in wanted:
            cpu = cpu_clock if device.type == "cpu" else None
            peak = _search(make(device, DTYPES[name]), seconds / len(wanted), clock, cpu)
            if peak is not None:
                peaks[name] = peak
    return peaks


def _search(
    rounds: Matmuls, seconds: float, clock: Callable[[], float], cpu_clock: Callable[[], float] | None
) -> MeasuredPeak | None:
    """The sizes get equal parts of the time. It ends early if a round would take too long or memory is short."""
    part, threads = seconds / len(rounds.sizes), torch.get_num_threads()
    peaks: list[MeasuredPeak] = []
    shortest = 0.0
    with suppress(RuntimeError):  # dtype not supported, or out of memory
        for size in rounds.sizes:
            if GROWTH * shortest > part:
                break
            shortest, cpu_seconds = _shortest(rounds, size, part, clock, cpu_clock)
            if cpu_clock is None or MOST * threads < cpu_seconds / shortest <= INEXACT * (os.cpu_count() or threads):
                peaks.append(MeasuredPeak(flops_per_second=rounds.flops(size) / shortest, size=size))
    return max(peaks, key=lambda peak: peak.flops_per_second, default=None)


def _shortest(
    rounds: Matmuls,
    size: int,
    seconds: float,
    clock: Callable[[], float],
    cpu_clock: Callable[[], float] | None,
) -> tuple[float, float]:
    rounds.prepare(size)
    end, shortest = clock() + seconds, (math.inf, 0.0)
    while shortest[0] == math.inf or clock() + shortest[0] <= end:
        start, cpu_start = clock(), cpu_clock() if cpu_clock is not None else 0.0
        rounds.run()
        cpu_seconds = cpu_clock() - cpu_start if cpu_clock is not None else 0.0
        shortest = min(shortest, (max(clock() - start, 1e-9), cpu_seconds))
    return shortest
