"""The best rate at which a device multiplies matrices: a peak for devices whose maker publishes none.

Square matrices of several sizes are multiplied for a second, with the threads that the process has. The best round
counts, since whatever else the machine does can only slow one down; until several rounds come close to it, measuring
goes on, for two seconds at most. Nothing is changed: threads and precision are those of the run, and no random number
is drawn. For as long as it takes, the device is waited for.
"""

import time
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import cycle

import torch

SECONDS = 0.9
"""For all dtypes together."""

MOST_SECONDS = 2.0
"""For all dtypes together, where the best is not confirmed any sooner."""

CONFIRMING = 4
"""Rounds besides the best one that have to come close to it."""

CLOSE = 1.01
"""How much longer than the best round one may take that comes close to it."""

PROMISING = 0.9
"""Sizes that reach this part of the best rate are tried until the end."""

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
class Best:
    """The best rate that a search found."""

    flops_per_second: float
    size: int
    """Rows and columns of the matrices."""
    rounds: int
    seconds: float
    """Seconds that the search took."""
    confirmed: bool = True
    """Several rounds came close to the best one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured(Best):
    """The best rate of one dtype."""

    dtype: str
    threads: int
    cpu_share: float | None = None
    """The share of its threads' time that the process got from the CPU meanwhile; None on other devices."""

    @property
    def disturbed(self) -> bool:
        """The device can do better: others had the CPU, so that threads waited for each other or rounds were uneven."""
        waited = self.cpu_share is not None and self.threads > 1 and self.cpu_share < UNDISTURBED
        return waited or not self.confirmed


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
    most_seconds: float = MOST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
    make: Callable[[torch.device, torch.dtype], Matmuls] = Matmuls,
) -> dict[str, Measured]:
    """The best rate of each dtype. One that the device can't multiply, or that has no name here, is left out."""
    wanted = [name for name in dict.fromkeys(dtypes) if name in DTYPES]
    threads = torch.get_num_threads()
    found: dict[str, Measured] = {}
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
            except RuntimeError:  # not built for this dtype, or no memory for it
                continue
            share = (cpu_clock() - used) / (best.seconds * threads) if device.type == "cpu" else None
            found[name] = Measured(dtype=name, threads=threads, cpu_share=share, **asdict(best))
    return found


class Search:
    """Finds the best rate among some sizes, by the least times that rounds took."""

    def __init__(self, rounds: Matmuls, clock: Callable[[], float]) -> None:
        self._rounds, self._clock = rounds, clock
        self._began = clock()
        self._least: dict[int, list[float]] = {}  # the best rounds of each size, the shortest first
        self._done = 0

    def explore(self, seconds: float) -> None:
        """Try each size a few times. A round that is likely to take too long is not begun."""
        for size in self._rounds.sizes:
            if self._least and self._now() + self._likely(size) > seconds:
                return
            self._rounds.prepare(size)
            for _ in range(TRIES):
                self._run(size)
                if self._now() > seconds:
                    break

    def repeat(self, seconds: float, until: float) -> None:
        """Try the promising sizes again and again, of those that don't take long."""
        quick = [size for size, least in self._least.items() if least[0] <= seconds / QUICK]
        quick = quick or [min(self._least, key=lambda size: self._least[size][0])]
        best = max(map(self._rate, quick))
        for size in cycle([size for size in quick if self._rate(size) >= PROMISING * best]):
            if self._now() + self._least[size][0] > until:
                return
            self._run(size)

    @property
    def confirmed(self) -> bool:
        """Some other rounds came close to the best one."""
        least = self._least[self._best]
        return len(least) > CONFIRMING and least[-1] <= least[0] * CLOSE

    def found(self) -> Best:
        """The best rate so far."""
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
        """Seconds that a round of the next size takes, going by the one before."""
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
    """The best rate among the sizes that there is time for.

    After `seconds` it ends as soon as other rounds came close to the best one, or after `most_seconds`.
    """
    most, until = most_seconds or seconds, seconds
    looking = Search(rounds, clock)
    looking.explore(seconds / 2)
    looking.repeat(seconds, until)
    while until < most and not looking.confirmed:
        until = min(until + seconds / 8, most)
        looking.repeat(seconds, until)
    return looking.found()
