"""Planned seconds: a part whose time is over stops at its next round and says so, and so do all parts together."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

TOTAL_SECONDS = 540.0
"""Seconds of all parts. A GPU is lent for 600, and starting Python, torch and CUDA takes some of these."""

T = TypeVar("T")


class Allowance:
    """Seconds that the current part may still take, and a list of all that was cut short."""

    def __init__(self, total: float = TOTAL_SECONDS, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end_of_all = clock() + total
        self._end = self._until = self._end_of_all
        self.cuts: list[str] = []
        """Sentences about the current part."""
        self.failed: list[str] = []
        """Names of cases that failed in the current part."""

    @property
    def left(self) -> float:
        """Seconds until the end of all parts."""
        return self._end_of_all - self._clock()

    def begin(self, seconds: float) -> None:
        """Begin a part that is planned for these seconds."""
        self._end = self._until = min(self._clock() + seconds, self._end_of_all)
        self.cuts, self.failed = [], []

    def each(self, cases: Sequence[T], name: Callable[[T], str] = str) -> Iterator[T]:
        """Yield cases, each with an equal share of the time that is left. Cases for which none is left are cuts."""
        for place, case in enumerate(cases):
            now = self._clock()
            if place and now >= self._end:
                self.cuts.append(f"{name(case)}: left out, the planned seconds are over")
                continue
            self._until = now + (self._end - now) / (len(cases) - place)
            yield case
        self._until = self._end

    def rounds(self, wanted: int | None, name: str, at_least: int = 1) -> Iterator[int]:
        """Yield the numbers of rounds until there are enough, or until the time is over. None: the caller ends them."""
        for number in itertools.count() if wanted is None else range(wanted):
            if number >= at_least and self._clock() >= self._until:
                of_all = "" if wanted is None else f" of {wanted}"
                self.cuts.append(f"{name}: stopped after {number}{of_all} rounds, the planned seconds are over")
                return
            yield number
