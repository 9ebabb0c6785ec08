"""Growth of garbage that is too fast to wait for the next collection."""

import gc
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.process.collector import FULL

MOST_YOUNG = 500_000
"""Objects since the last collection that make a rank collect at once."""

GROWTH = 0.1
"""Growth of memory, as a ratio, that does the same…"""

LEAST_GROWTH = 256_000_000
"""…if it is at least as many bytes."""


LOOK_SECONDS = 0.25
"""Looks between scheduled collections are at least this far apart, the first ones aside: closer ones cost too much."""


class Relief(NamedTuple):
    """A collection that could not wait: its cause and its effect."""

    found: str
    helped: bool
    """True: much of what it visited was garbage."""


class Growth:
    """Watches the garbage on this rank, and collects if it grows too much."""

    def __init__(self, memory: Callable[[], Mapping[str, int]], young: int, collect: Callable[[int], int]) -> None:
        self._memory, self._young, self._collect = memory, young, collect
        self._base: Mapping[str, int] = {}
        self._looked_at = 0, -math.inf

    def begin(self) -> None:
        """Take the memory in use now as the normal amount."""
        self._base = self._memory()

    def relieve(self, step: int) -> Relief | None:
        """Collect after a step if necessary. None: it was not."""
        young = gc.get_count()[0]
        if young > MOST_YOUNG:
            return Relief(f"{young:,} new objects after step {step}", 2 * self._collect(self._young) > young)
        used = self._memory()
        grown = [kind for kind, amount in used.items() if _grown(self._base.get(kind, amount), amount)]
        if not grown:
            return None
        self._collect(FULL)
        after = self._memory()
        helped = any(used[kind] - after.get(kind, 0) > (used[kind] - self._base[kind]) / 2 for kind in grown)
        self._base = {**self._base, **{kind: after[kind] for kind in grown if kind in after}}
        return Relief(f"{grown[0]} memory {used[grown[0]] / 1e6:,.0f} MB after step {step}", helped)

    def patience(self, step: int) -> int:
        """Return how many steps may pass until the next look, going by the steps since the last call."""
        (before, then), self._looked_at = self._looked_at, (step, perf_counter())
        return math.ceil(LOOK_SECONDS * (step - before) / max(self._looked_at[1] - then, 1e-9))


def _grown(before: int, now: int) -> bool:
    return now - before > max(LEAST_GROWTH, GROWTH * before)
