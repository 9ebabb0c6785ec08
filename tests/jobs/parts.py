"""Parts of ranks, combined as rank 0 does it; without torch."""

from perf_callbacks.kernel.engine.windows import Part
from perf_callbacks.ranks.bundles import Bundle, Combination

PART = Part(
    window=2, length=50, rank=0, world_size=2, data_parallel=2, steps=49, seconds=12.5, samples=400, tokens=51_200,
    useful_tokens=None, asks={"gc_interval": 50, "profile": 1},
)  # fmt: skip
"""Part of rank 0 in a window of two ranks."""


def combine(parts, missing=()):
    """Combine one part of each rank that isn't missing, in any order, into one window, if there is one."""
    combination = Combination()
    combination.add([Bundle.from_part(part) for part in parts])
    return combination.window(missing)
