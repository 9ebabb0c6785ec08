"""Early garbage collection, on a rank whose garbage grows too fast to wait for the next planned collection."""

import gc
import math
from collections.abc import Callable, Mapping

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.process.collector import FULL

MOST_YOUNG = 500_000  # new objects since the previous collection, above which a rank collects at once

GROWTH = 0.1  # growth of memory since the previous collection, above which a rank collects at once

LEAST_GROWTH = 256_000_000  # bytes; less growth is no reason to collect at once


LOOK_SECONDS = 0.25  # seconds between two checks, more often soon after the beginning of a fit


class Growth:
    """Watches this rank's garbage, and collects what grows too fast."""

    def __init__(self, memory: Callable[[], Mapping[str, int]], young: int, collect: Callable[[int], int]) -> None:
        self._memory, self._young, self._collect = memory, young, collect
        self._base: Mapping[str, int] = {}
        self._looked_at = 0, -math.inf

    def begin(self) -> None:
        self._base = self._memory()

    def relieve(self, step: int) -> tuple[str, bool] | None:
        """Collect if there is too much garbage. Return the reason, and True if more than half of the new was freed."""
        young = gc.get_count()[0]
        if young > MOST_YOUNG:
            return f"{young:,} new objects after step {step}", 2 * self._collect(self._young) > young
        used = self._memory()
        grown = [kind for kind, amount in used.items() if _grown(self._base.get(kind, amount), amount)]
        if not grown:
            return None
        self._collect(FULL)
        after = self._memory()
        helped = any(used[kind] - after.get(kind, 0) > (used[kind] - self._base[kind]) / 2 for kind in grown)
        self._base = {**self._base, **{kind: after[kind] for kind in grown if kind in after}}
        return f"{grown[0]} memory {used[grown[0]] / 1e6:,.0f} MB after step {step}", helped

    def patience(self, step: int) -> int:
        (before, then), self._looked_at = self._looked_at, (step, perf_counter())
        return math.ceil(LOOK_SECONDS * (step - before) / max(self._looked_at[1] - then, 1e-9))


def _grown(before: int, now: int) -> bool:
    return now - before > max(LEAST_GROWTH, GROWTH * before)
