"""Variants that take turns within one process: what each adds to a step, with an interval."""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Mapping

BLOCK = 128
"""Steps of a turn: two times what the journal takes at once."""

SETTLE = 8
"""Steps at the start of a turn that don't count: switching costs."""

TURN = SETTLE + BLOCK

Switch = Callable[[], object]


class Turns:
    """Told of the end of every step, it times blocks of them and switches from one variant to the next.

    A variant is what switches it on and what switches it off. The first one is what the others are compared with.
    """

    def __init__(self, variants: Mapping[str, tuple[Switch, Switch]], cycles: int) -> None:
        self.variants = variants
        self.blocks: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        self.cycles = cycles
        self._order = itertools.cycle(variants)
        self._now = next(self._order)
        self._times: list[float] = []
        self._cpu = 0.0

    @property
    def steps(self) -> int:
        """How many it takes; the first cycle is for warming up."""
        return (self.cycles + 1) * len(self.variants) * TURN

    def step(self) -> None:
        """A step is done."""
        self._times.append(time.perf_counter())
        if len(self._times) == SETTLE:
            self._cpu = time.process_time()
        elif len(self._times) == TURN:
            cpu = (time.process_time() - self._cpu) / BLOCK
            steps = [end - start for start, end in itertools.pairwise(self._times[SETTLE - 1 :])]
            self.blocks[self._now].append((sorted(steps)[len(steps) // 10], cpu))
            self.switch()

    def switch(self) -> None:
        """Off with one variant, on with the next."""
        self.variants[self._now][1]()
        self._now = next(self._order)
        self.variants[self._now][0]()
        self._times = []

    def report(self, door: str) -> None:
        """Print what each variant added: to a quiet step by the clock, and to the mean step in CPU time."""
        count = min(map(len, self.blocks.values()))
        blocks = {name: values[1:count] for name, values in self.blocks.items()}
        name, *others = blocks
        base = statistics.median([quiet for quiet, _ in blocks[name]]) * 1e6
        print(f"\n{door}: a step with {name} takes {base:.0f} us; {count - 1} cycles")
        print(f"  {'':<24}{'quiet step':>12}  95 % interval      {'mean CPU':>9}  95 % interval")
        for other in others:
            figures = []
            for column in (0, 1):
                pairs = zip(blocks[other], blocks[name], strict=True)
                differences = [(ours[column] - none[column]) * 1e6 for ours, none in pairs]
                figures += [statistics.median(differences), *interval(differences)]
            print("  {:<24}{:>12.1f}  [{:.1f}, {:.1f}]{:>14.1f}  [{:.1f}, {:.1f}]".format(other, *figures))


def interval(differences: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(differences, k=len(differences))) for _ in range(2000))
    return medians[50], medians[1949]


def nothing() -> None:
    """Switches nothing."""


NONE = (nothing, nothing)
