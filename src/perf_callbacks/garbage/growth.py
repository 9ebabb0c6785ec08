"""Early garbage collection, on a rank whose garbage grows too fast to wait for the next planned collection."""

import gc
import math
from collections.abc import Callable, Mapping

from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.process.collector import FULL

MOST_YOUNG = 500_000
"""A rank that has made more than this many new objects since its previous collection collects garbage immediately."""

GROWTH = 0.1
"""A rank collects garbage immediately if its memory use has grown by more than 10%. The growth must also exceed
`LEAST_GROWTH` bytes."""

LEAST_GROWTH = 256_000_000
"""If memory has grown by this many bytes or less, the growth is no reason to collect garbage at once."""


LOOK_SECONDS = 0.25
"""Number of seconds that should pass between two checks for garbage. Soon after the beginning of a fit, checks are more
frequent."""


class Growth:
    """Watches the growth of garbage on this rank, and collects garbage that grows too fast."""

    def __init__(self, memory: Callable[[], Mapping[str, int]], young: int, collect: Callable[[int], int]) -> None:
        self._memory, self._young, self._collect = memory, young, collect
        self._base: Mapping[str, int] = {}
        self._looked_at = 0, -math.inf

    def begin(self) -> None:
        """Store the memory in use now. Later growth is measured from this amount."""
        self._base = self._memory()

    def relieve(self, step: int) -> tuple[str, bool] | None:
        """After a step, collect garbage if there is too much garbage. Return None if no collection was needed.

        Return the reason for the collection, and True if it freed more than half of the new objects or new memory.
        """
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
        """Return the number of steps until the next check for garbage, computed from the time of recent steps."""
        (before, then), self._looked_at = self._looked_at, (step, perf_counter())
        return math.ceil(LOOK_SECONDS * (step - before) / max(self._looked_at[1] - then, 1e-9))


def _grown(before: int, now: int) -> bool:
    return now - before > max(LEAST_GROWTH, GROWTH * before)
