"""Measure the best rate at which a device multiplies matrices: by default, if the vendor publishes no peak.

Square matrices of several sizes are multiplied for a second in all, with the threads of the process. The best round
counts, because other work on the machine can only slow a round down. No state changes: the measurement uses the threads
and the precision of the run, and draws no random number. Meanwhile the host waits for the device.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.foreign_errors import let_pass, suppress

SECONDS = 0.9
"""Seconds of a measurement, for all dtypes together."""

SIZES = {"cpu": (256, 512, 1024, 2048)}
"""Rows and columns of the matrices, smallest first, each twice the size before."""
DEVICE_SIZES = (1024, 2048, 4096, 8192)

GROWTH = 8
"""Time of a round, relative to a round of the size before."""

CALLS = 8
"""Multiplications that are queued at once, so that the device doesn't wait for the host in between."""

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "tfloat32": torch.float32,  # if the run allows it
}
"""Dtypes that can be measured, by their names in the table of peaks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPeak:
    """Best rate of a dtype."""

    flops_per_second: float
    size: int
    """Rows and columns of the matrices."""


class Matmuls:
    """Multiplications on a device, of matrices that `prepare` allocates."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.sizes: tuple[int, ...] = SIZES.get(device.type, DEVICE_SIZES)
        self._device = device
        self._dtype = dtype
        self._calls = 1 if device.type == "cpu" else CALLS

    def flops(self, size: int) -> float:
        """Return the FLOPs of a round: a multiplication and an addition per element of the result and column."""
        return 2.0 * size**3 * self._calls

    def prepare(self, size: int) -> None:
        """Allocate matrices of this size."""
        ramp = torch.linspace(-1, 1, size * size, dtype=torch.float32, device=self._device).to(self._dtype)
        left, right = ramp.view(size, size), ramp.flip(0).view(size, size)
        self._matrices = left, right, torch.empty_like(left)

    def run(self) -> None:
        """Run a round and wait for its end."""
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
    make: Callable[[torch.device, torch.dtype], Matmuls] = Matmuls,
) -> dict[str, MeasuredPeak]:
    """Measure the best rate of each dtype. Unknown dtypes, and dtypes that the device can't multiply, are left out."""
    wanted = [name for name in dict.fromkeys(dtypes) if name in DTYPES]
    found: dict[str, MeasuredPeak] = {}
    with torch.no_grad():
        for name in wanted:
            with suppress(RuntimeError):  # dtype not supported, or out of memory
                found[name] = _search(make(device, DTYPES[name]), seconds / len(wanted), clock)
    return found


def _search(rounds: Matmuls, seconds: float, clock: Callable[[], float]) -> MeasuredPeak:
    """Find the best rate. Each size gets an equal part of the time.

    The search ends before a size whose round would take too long, or at a size that doesn't fit into memory.
    """
    part = seconds / len(rounds.sizes)
    found: list[MeasuredPeak] = []
    shortest = 0.0
    for size in rounds.sizes:
        if GROWTH * shortest > part:
            break
        try:
            shortest = _shortest(rounds, size, part, clock)
        except RuntimeError as error:  # out of memory, if smaller matrices fitted
            let_pass(error)
            if not found:
                raise
            break
        found.append(MeasuredPeak(flops_per_second=rounds.flops(size) / shortest, size=size))
    return max(found, key=lambda peak: peak.flops_per_second)


def _shortest(rounds: Matmuls, size: int, seconds: float, clock: Callable[[], float]) -> float:
    """Return the seconds of the shortest round of a size."""
    rounds.prepare(size)
    end, shortest = clock() + seconds, math.inf
    while shortest == math.inf or clock() + shortest <= end:
        start = clock()
        rounds.run()
        shortest = min(shortest, max(clock() - start, 1e-9))
    return shortest
