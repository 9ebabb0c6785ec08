"""Parts of ranks, combined as rank 0 does it."""

from perf_callbacks.ranks.bundles import Bundle, Combination


def combine(parts, missing=()):
    """Combine one part of each rank that isn't missing, in any order, into one window, if there is one."""
    combination = Combination()
    combination.add([Bundle.of(part) for part in parts])
    return combination.window(missing)
