"""What a device does at best when it multiplies matrices: a peak for devices whose maker publishes none.

Square matrices of several sizes are multiplied for a part of a second, with the threads that the process has. The best
round counts, since whatever else the machine does can only slow one down. Nothing is changed: threads and precision are
those of the run, and no random number is drawn. For as long as it takes, the device is waited for.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import torch

SECONDS = 0.9
"""For all dtypes together."""

SIZES = {"cpu": (256, 512, 1024, 2048)}
"""Rows and columns of the matrices that are tried, smallest first. What is likely to take too long is left out."""
DEVICE_SIZES = (1024, 2048, 4096)

CALLS = 8
"""Multiplications that a device is given at once, so that it doesn't wait for the host between them."""

TRIES = 3
"""Rounds of each size, before all sizes that don't take long are tried in turn for the rest of the time."""

UNDISTURBED = 0.7
"""A process with several threads that gets less of its CPU time than this is disturbed."""

QUICK = 20
"""A round that takes more than this part of the time is not repeated."""

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "tfloat32": torch.float32,  # as the run has allowed it
}
"""What can be measured, by the names of the table of peaks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The best rate of one dtype, and how it came about."""

    flops_per_second: float
    dtype: str
    threads: int
    size: int
    """Rows and columns of the matrices."""
    rounds: int
    seconds: float
    """What measuring took."""
    cpu_share: float | None = None
    """How much of its threads' time the process got from the CPU meanwhile; None on other devices."""

    @property
    def disturbed(self) -> bool:
        """Whether threads had to wait for each other because others had the CPU: then the best is not the best."""
        return self.cpu_share is not None and self.threads > 1 and self.cpu_share < UNDISTURBED


class Rounds(Protocol):
    """Rounds of work, one size at a time."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Which sizes there are, smallest first."""
        ...

    def flops(self, size: int) -> float:
        """How much a round is."""
        ...

    def prepare(self, size: int) -> None:
        """Have what rounds of this size need, and of those before."""

    def run(self, size: int) -> None:
        """Do a round, and wait until it is done."""


class Matmuls:
    """Multiplications on a device, into memory that is there already."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.sizes: tuple[int, ...] = SIZES.get(device.type, DEVICE_SIZES)
        self._device = device
        self._dtype = dtype
        self._calls = 1 if device.type == "cpu" else CALLS
        self._memory: list[torch.Tensor] = []

    def flops(self, size: int) -> float:
        """Each element of the result takes a multiplication and an addition per column."""
        return 2.0 * size**3 * self._calls

    def prepare(self, size: int) -> None:
        """Make room for matrices of this size."""
        ramp = torch.linspace(-1, 1, size * size, dtype=torch.float32, device=self._device).to(self._dtype)
        self._memory = [ramp, ramp.flip(0), torch.empty_like(ramp)]

    def run(self, size: int) -> None:
        """Do a round, and wait until it is done."""
        left, right, result = (memory[: size * size].view(size, size) for memory in self._memory)
        for _ in range(self._calls):
            torch.mm(left, right, out=result)
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def measure(
    device: torch.device,
    dtypes: Iterable[str],
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
    make: Callable[[torch.device, torch.dtype], Rounds] = Matmuls,
) -> dict[str, Measured]:
    """The best rate of each dtype. One that the device can't multiply, or that has no name here, is left out."""
    wanted = [name for name in dict.fromkeys(dtypes) if name in DTYPES]
    threads = torch.get_num_threads()
    found: dict[str, Measured] = {}
    with torch.no_grad():
        for name in wanted:
            used = cpu_clock()
            try:
                best = search(make(device, DTYPES[name]), seconds=seconds / len(wanted), clock=clock)
            except RuntimeError:  # not built for this dtype, or no memory for it
                continue
            share = (cpu_clock() - used) / (best.seconds * threads) if device.type == "cpu" else None
            found[name] = Measured(
                flops_per_second=best.flops_per_second,
                dtype=name,
                threads=threads,
                size=best.size,
                rounds=best.rounds,
                seconds=best.seconds,
                cpu_share=share,
            )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """What a search found."""

    flops_per_second: float
    size: int
    rounds: int
    seconds: float


def search(rounds: Rounds, *, seconds: float, clock: Callable[[], float]) -> Best:
    """The best rate among the sizes that there is time for. A round that is likely to take too long is not begun."""
    began = clock()
    best: dict[int, float] = {}
    done = 0
    for size in rounds.sizes:
        if best and clock() - began + _likely(rounds, best, size) > seconds / 2:
            break
        rounds.prepare(size)
        for _ in range(TRIES):
            best[size] = min(_timed(rounds, size, clock), best.get(size, float("inf")))
            done += 1
            if clock() - began > seconds / 2:
                break
    quick = [size for size in best if best[size] <= seconds / QUICK] or [min(best, key=best.__getitem__)]
    for size in cycle(quick):
        if clock() - began + best[size] > seconds:
            break
        best[size] = min(_timed(rounds, size, clock), best[size])
        done += 1
    rates = {size: rounds.flops(size) / least for size, least in best.items()}
    size = max(rates, key=rates.__getitem__)
    return Best(flops_per_second=rates[size], size=size, rounds=done, seconds=clock() - began)


def _likely(rounds: Rounds, best: dict[int, float], size: int) -> float:
    """What a round of the next size takes, going by the one before."""
    return best[max(best)] * rounds.flops(size) / rounds.flops(max(best))


def _timed(rounds: Rounds, size: int, clock: Callable[[], float]) -> float:
    start = clock()
    rounds.run(size)
    return max(clock() - start, 1e-9)
