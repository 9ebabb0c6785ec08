"""Measure the highest FLOP/s at which a device multiplies matrices. By default, only unknown peaks are measured.

The measurement multiplies square matrices of several sizes for about a second in total. The result is the speed of the
fastest round, because other work on the machine can only slow a round down. The measurement uses the number of threads
and the precision of float32 matmuls that are set in the process. It draws no random numbers. During the measurement,
the host waits for the device.

On a CPU, a round counts only if torch's threads had a CPU for most of the round. Otherwise other programs had the CPUs.
A round in which the process used more CPU time than there is doesn't count either: its clock is wrong.
"""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from perf_callbacks.kernel.clock import perf_counter, process_time
from perf_callbacks.kernel.foreign_errors import suppress

SECONDS = 0.9
"""Duration of a measurement in seconds, for all dtypes together."""

SIZES = {"cpu": (256, 512, 1024, 2048)}
"""Number of rows and columns of the square matrices, the smallest first. Each size is twice the size before."""
DEVICE_SIZES = (1024, 2048, 4096, 8192)

GROWTH = 8
"""If the number of rows and columns doubles, a round takes about eight times as long."""

CALLS = 8
"""Number of multiplications that are queued at once, so that the device doesn't wait for the host between them."""

MOST = 0.5
"""A round counts if the process used more than this share of the CPU time that torch's threads could use."""

INEXACT = 1.1
"""Factor for the difference between the clocks of CPU time and time."""

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "tfloat32": torch.float32,  # if the run allows it
}
"""Maps the name of a dtype in the table of peaks to torch's dtype. Only these dtypes can be measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPeak:
    """Highest measured FLOP/s of a dtype."""

    flops_per_second: float
    size: int
    """Number of rows and columns of the square matrices."""


class Matmuls:
    """Multiplies matrices on a device. The method `prepare` allocates the matrices."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.sizes: tuple[int, ...] = SIZES.get(device.type, DEVICE_SIZES)
        self._device = device
        self._dtype = dtype
        self._calls = 1 if device.type == "cpu" else CALLS

    def flops(self, size: int) -> float:
        """Return the FLOPs of one round. A product of two square matrices of size n takes 2 * n**3 FLOPs."""
        return 2.0 * size**3 * self._calls

    def prepare(self, size: int) -> None:
        ramp = torch.linspace(-1, 1, size * size, dtype=torch.float32, device=self._device).to(self._dtype)
        left, right = ramp.view(size, size), ramp.flip(0).view(size, size)
        self._matrices = left, right, torch.empty_like(left)

    def run(self) -> None:
        """Run a round of multiplications, and wait until the device has finished the round."""
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
    """Measure the highest FLOP/s of each dtype. Dtypes that are unknown or not supported are left out.

    `cpu_clock` returns the CPU time of this process. None: the clock of the system is too coarse, as on Windows.
    """
    wanted = [name for name in dict.fromkeys(dtypes) if name in DTYPES]
    found: dict[str, MeasuredPeak] = {}
    with torch.no_grad():
        for name in wanted:
            cpu = cpu_clock if device.type == "cpu" else None
            peak = _search(make(device, DTYPES[name]), seconds / len(wanted), clock, cpu)
            if peak is not None:
                found[name] = peak
    return found


def _search(
    rounds: Matmuls, seconds: float, clock: Callable[[], float], cpu_clock: Callable[[], float] | None
) -> MeasuredPeak | None:
    """Return the highest FLOP/s over all matrix sizes, or None if the device doesn't support the dtype.

    Each size gets an equal part of the time. The search ends early if a round with the next size would take too long,
    or if the matrices don't fit into memory.
    """
    part, threads = seconds / len(rounds.sizes), torch.get_num_threads()
    found: list[MeasuredPeak] = []
    shortest = 0.0
    with suppress(RuntimeError):  # dtype not supported, or out of memory
        for size in rounds.sizes:
            if GROWTH * shortest > part:
                break
            shortest, cpu_seconds = _shortest(rounds, size, part, clock, cpu_clock)
            if cpu_clock is None or MOST * threads < cpu_seconds / shortest <= INEXACT * (os.cpu_count() or threads):
                found.append(MeasuredPeak(flops_per_second=rounds.flops(size) / shortest, size=size))
    return max(found, key=lambda peak: peak.flops_per_second, default=None)


def _shortest(
    rounds: Matmuls,
    size: int,
    seconds: float,
    clock: Callable[[], float],
    cpu_clock: Callable[[], float] | None,
) -> tuple[float, float]:
    """Return the duration of the fastest round with matrices of this size, and its CPU time, both in seconds."""
    rounds.prepare(size)
    end, shortest = clock() + seconds, (math.inf, 0.0)
    while shortest[0] == math.inf or clock() + shortest[0] <= end:
        start, cpu_start = clock(), cpu_clock() if cpu_clock is not None else 0.0
        rounds.run()
        cpu_seconds = cpu_clock() - cpu_start if cpu_clock is not None else 0.0
        shortest = min(shortest, (max(clock() - start, 1e-9), cpu_seconds))
    return shortest
