"""Measure the best rate at which a device multiplies matrices, if the vendor publishes no peak.

Square matrices of several sizes are multiplied for a second, with the threads of the process. The best round counts,
because other work on the machine can only slow a round down. If too few rounds come close to the best round, measuring
continues, for two seconds at most. No state changes: threads and precision are the run's, and no random number is
drawn. The host waits for the device meanwhile.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import cycle

import torch

from perf_callbacks.kernel.clock import perf_counter, process_time
from perf_callbacks.kernel.foreign_errors import let_pass

SECONDS = 0.9
"""Seconds for all dtypes together."""

MOST_SECONDS = 2.0
"""Most seconds for all dtypes together, if the best round is not confirmed earlier."""

CONFIRMING = 4
"""Number of other rounds that have to come close to the best round."""

CLOSE = 1.01
"""Duration of a round, relative to the best round, up to which the round counts as close."""

PROMISING = 0.9
"""Least share of the best rate for which a size is repeated."""

SIZES = {"cpu": (256, 512, 1024, 2048)}
"""Rows and columns of the matrices, smallest first. Sizes that would take too long are left out."""
DEVICE_SIZES = (1024, 2048, 4096)

CALLS = 8
"""Multiplications that are queued at once, so that the device doesn't wait for the host in between."""

TRIES = 3
"""Rounds of each size, before all quick sizes are tried in turn for the rest of the time."""

UNDISTURBED = 0.7
"""Share of CPU time below which a process with several threads counts as disturbed."""

QUICK = 20
"""A size is repeated only if its round takes at most one part in this many of the total time."""

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "tfloat32": torch.float32,  # if the run allows it
}
"""Dtypes that can be measured, by their names in the table of peaks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """Best rate of a search."""

    flops_per_second: float
    size: int
    """Rows and columns of the matrices."""
    rounds: int
    seconds: float
    """Seconds that the search took."""
    confirmed: bool = True
    """True: several rounds came close to the best round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPeak(Best):
    """Best rate of a dtype."""

    dtype: str
    threads: int
    cpu_share: float | None = None
    """CPU time of the process divided by its threads' wall time; None on other devices."""

    @property
    def disturbed(self) -> bool:
        """True: the rate is too low because other programs used the CPU: threads waited or rounds were uneven."""
        waited = self.cpu_share is not None and self.threads > 1 and self.cpu_share < UNDISTURBED
        return waited or not self.confirmed


class Matmuls:
    """Multiplications on a device, with preallocated memory."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.sizes: tuple[int, ...] = SIZES.get(device.type, DEVICE_SIZES)
        self._device = device
        self._dtype = dtype
        self._calls = 1 if device.type == "cpu" else CALLS
        self._memory: list[torch.Tensor] = []

    def flops(self, size: int) -> float:
        """Return the FLOPs of a round: a multiplication and an addition per element of the result and column."""
        return 2.0 * size**3 * self._calls

    def prepare(self, size: int) -> None:
        """Allocate matrices of this size."""
        ramp = torch.linspace(-1, 1, size * size, dtype=torch.float32, device=self._device).to(self._dtype)
        self._memory = [ramp, ramp.flip(0), torch.empty_like(ramp)]

    def run(self, size: int) -> None:
        """Run a round and wait for its end."""
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
    most_seconds: float = MOST_SECONDS,
    clock: Callable[[], float] = perf_counter,
    cpu_clock: Callable[[], float] = process_time,
    make: Callable[[torch.device, torch.dtype], Matmuls] = Matmuls,
) -> dict[str, MeasuredPeak]:
    """Measure the best rate of each dtype. Unknown dtypes, and dtypes that the device can't multiply, are left out."""
    wanted = [name for name in dict.fromkeys(dtypes) if name in DTYPES]
    threads = torch.get_num_threads()
    found: dict[str, MeasuredPeak] = {}
    with torch.no_grad():
        for name in wanted:
            used = cpu_clock()
            try:
                best = search(
                    make(device, DTYPES[name]),
                    seconds=seconds / len(wanted),
                    most_seconds=most_seconds / len(wanted),
                    clock=clock,
                )
            except RuntimeError as error:  # dtype not supported, or out of memory
                let_pass(error)
                continue
            share = (cpu_clock() - used) / (best.seconds * threads) if device.type == "cpu" else None
            found[name] = MeasuredPeak(dtype=name, threads=threads, cpu_share=share, **asdict(best))
    return found


class Search:
    """Finds the best rate among some sizes, by the shortest rounds."""

    def __init__(self, rounds: Matmuls, clock: Callable[[], float]) -> None:
        self._rounds, self._clock = rounds, clock
        self._began = clock()
        self._least: dict[int, list[float]] = {}  # the best rounds of each size, the shortest first
        self._done = 0

    def explore(self, seconds: float) -> None:
        """Try each size a few times. A round that would take too long is not started."""
        for size in self._rounds.sizes:
            if self._least and self._now() + self._likely(size) > seconds:
                return
            self._rounds.prepare(size)
            for _ in range(TRIES):
                self._run(size)
                if self._now() > seconds:
                    break

    def repeat(self, seconds: float, until: float) -> None:
        """Repeat the promising sizes, except slow sizes."""
        quick = [size for size, least in self._least.items() if least[0] <= seconds / QUICK]
        quick = quick or [min(self._least, key=lambda size: self._least[size][0])]
        best = max(map(self._rate, quick))
        for size in cycle([size for size in quick if self._rate(size) >= PROMISING * best]):
            if self._now() + self._least[size][0] > until:
                return
            self._run(size)

    @property
    def confirmed(self) -> bool:
        """True: enough other rounds came close to the best round."""
        least = self._least[self._best]
        return len(least) > CONFIRMING and least[-1] <= least[0] * CLOSE

    def found(self) -> Best:
        """Return the best rate so far."""
        size = self._best
        return Best(
            flops_per_second=self._rate(size),
            size=size,
            rounds=self._done,
            seconds=self._now(),
            confirmed=self.confirmed,
        )

    @property
    def _best(self) -> int:
        return max(self._least, key=self._rate)

    def _rate(self, size: int) -> float:
        return self._rounds.flops(size) / self._least[size][0]

    def _likely(self, size: int) -> float:
        """Estimate the seconds of a round of the next size from the size before."""
        last = max(self._least)
        return self._least[last][0] * self._rounds.flops(size) / self._rounds.flops(last)

    def _now(self) -> float:
        return self._clock() - self._began

    def _run(self, size: int) -> None:
        start = self._clock()
        self._rounds.run(size)
        least = self._least.setdefault(size, [])
        insort(least, max(self._clock() - start, 1e-9))
        del least[CONFIRMING + 1 :]
        self._done += 1


def search(rounds: Matmuls, *, seconds: float, clock: Callable[[], float], most_seconds: float | None = None) -> Best:
    """Find the best rate among the sizes that fit into the time.

    After `seconds` the search ends as soon as enough rounds came close to the best round, and after `most_seconds` in
    any case.
    """
    most, until = most_seconds or seconds, seconds
    looking = Search(rounds, clock)
    looking.explore(seconds / 2)
    looking.repeat(seconds, until)
    while until < most and not looking.confirmed:
        until = min(until + seconds / 8, most)
        looking.repeat(seconds, until)
    return looking.found()
