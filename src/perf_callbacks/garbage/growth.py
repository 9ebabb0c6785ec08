"""Garbage that grows too fast to wait for the next collection."""

import gc
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.process.collector import FULL

MOST_YOUNG = 500_000
"""A rank collects at once if the program made more objects than this since the last collection."""

GROWTH = 0.1
"""A rank also collects at once if memory has grown by more than this ratio and by more than `LEAST_GROWTH`."""

LEAST_GROWTH = 256_000_000
"""Bytes by which memory must grow, in addition to the ratio `GROWTH`."""


LOOK_SECONDS = 0.25
"""Time between two checks, by the pace of the last steps. Soon after the beginning, checks are more frequent."""


class Relief(NamedTuple):
    """A collection outside of the schedule, because garbage grew too fast: its cause and its effect."""

    found: str
    helped: bool
    """True: a large part of the visited objects was garbage."""


class Growth:
    """Watches the garbage on this rank, and collects garbage that grows too fast."""

    def __init__(self, memory: Callable[[], Mapping[str, int]], young: int, collect: Callable[[int], int]) -> None:
        self._memory, self._young, self._collect = memory, young, collect
        self._base: Mapping[str, int] = {}
        self._looked_at = 0, -math.inf

    def begin(self) -> None:
        """Take the memory in use now as the normal amount."""
        self._base = self._memory()

    def relieve(self, step: int) -> Relief | None:
        """Collect after a step if garbage has grown too much. None: no collection was needed."""
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
        """Return the number of steps until the next check. The pace since the last call decides the number."""
        (before, then), self._looked_at = self._looked_at, (step, perf_counter())
        return math.ceil(LOOK_SECONDS * (step - before) / max(self._looked_at[1] - then, 1e-9))


def _grown(before: int, now: int) -> bool:
    return now - before > max(LEAST_GROWTH, GROWTH * before)
