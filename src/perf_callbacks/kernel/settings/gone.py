"""Settings and values that are gone."""

GONE = {
    "checklist=prove": "use `perf-callbacks try` to measure what each item gains",
    "affinity=socket": "start the ranks with `torchrun --numa-binding socket`",
    "affinity=exclusive": "start the ranks with `torchrun --numa-binding exclusive`",
}
"""Maps a setting with its value to what to do instead."""
