"""Variants that take turns within one process: what each adds to a step, with an interval."""

import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

BLOCK = 256
"""Steps of a turn: what the journal takes at once."""

SETTLE = 320
"""Steps at the start of a turn that don't count: switching costs, and a fit counts FLOPs until its step 304, and then
in one step of 1,009."""

TURN = SETTLE + BLOCK

RESAMPLES = 1000
"""Bootstrap resamples of an interval."""

Switch = Callable[[], object]


class MedianInterval(NamedTuple):
    """A median with its 95 % confidence interval."""

    median: float
    low: float
    high: float


def interval(values: Sequence[float]) -> MedianInterval:
    """Return the median of the values, with its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted([statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)])
    return MedianInterval(statistics.median(values), medians[RESAMPLES // 40], medians[-1 - RESAMPLES // 40])


class Turns:
    """Told of the end of every step, it times blocks of them and switches from one variant to the next.

    A variant is what switches it on and what switches it off. The first one is what the others are compared with: it
    has its turn before and after each of them. Turns in which garbage is collected fully are left out, whoever asked
    for that: it takes as long as a hundred steps.
    """

    def __init__(self, variants: Mapping[str, tuple[Switch, Switch]], cycles: int) -> None:
        self.variants = variants
        self.base, *self.others = variants
        self.blocks: list[tuple[str, tuple[float, float] | None]] = []
        self.cycle = [name for other in self.others for name in (self.base, other)]
        self.cycles = cycles
        self._order = itertools.cycle(self.cycle)
        self._now = next(self._order)
        self._times: list[float] = []
        self._cpu = 0.0
        self._collected = False
        gc.callbacks.append(self._hear)

    def _hear(self, _phase: str, info: dict[str, int]) -> None:
        self._collected |= info["generation"] == 2

    @property
    def steps(self) -> int:
        """How many it takes; the first cycle is for warming up, and after the last one the first has its turn again."""
        return ((self.cycles + 1) * len(self.cycle) + 1) * TURN

    def step(self) -> None:
        """A step is done."""
        self._times.append(time.perf_counter())
        if len(self._times) == SETTLE:
            self._collected, self._cpu = False, time.process_time()
        elif len(self._times) == TURN:
            cpu = (time.process_time() - self._cpu) / BLOCK
            steps = [end - start for start, end in itertools.pairwise(self._times[SETTLE - 1 :])]
            self.blocks.append((self._now, None if self._collected else (sorted(steps)[len(steps) // 10], cpu)))
            self.switch()

    def switch(self) -> None:
        """Off with one variant, on with the next."""
        self.variants[self._now][1]()
        self._now = next(self._order)
        self.variants[self._now][0]()
        self._times = []

    def differences(self, other: str, column: int) -> list[float]:
        """What each turn of a variant took more than the turns of the first one around it; warming up is left out."""
        blocks = self.blocks[len(self.cycle) :]
        return [
            ours[column] - (before[column] + after[column]) / 2
            for (_, before), (name, ours), (_, after) in zip(blocks, blocks[1:], blocks[2:], strict=False)
            if name == other and before and ours and after
        ]

    def report(self, door: str) -> None:
        """Print what each variant added: to a quiet step by the clock, and to the mean step in CPU time."""
        blocks = self.blocks[len(self.cycle) :]
        base = statistics.median([times[0] for name, times in blocks if name == self.base and times]) * 1e6
        print(f"\n{door}: a step with {self.base} takes {base:.0f} us; {self.cycles} cycles")
        print(f"  {'':<24}{'quiet step':>12}  95 % interval      {'mean CPU':>9}  95 % interval")
        for other in self.others:
            figures = []
            for column in (0, 1):
                differences = [seconds * 1e6 for seconds in self.differences(other, column)]
                found = interval(differences) if differences else None
                figures += [math.nan] * 3 if found is None else [found.median, found.low, found.high]
            left = "" if len(differences) == self.cycles else f"  of {len(differences)} cycles"
            print("  {:<24}{:>12.1f}  [{:.1f}, {:.1f}]{:>14.1f}  [{:.1f}, {:.1f}]{}".format(other, *figures, left))


def nothing() -> None:
    """Switches nothing."""


NONE = (nothing, nothing)
