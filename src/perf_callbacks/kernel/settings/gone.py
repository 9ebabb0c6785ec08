"""Commands and options that are gone."""

GONE_COMMANDS = {
    "config": "write the section perf_callbacks into accelerate's config by hand, as docs/accelerate-config.md shows",
    "check --cost": "docs/benchmarks.md has the cost; `python benchmarks/overhead.py` measures it from a checkout",
    "flops --config": "give the path of config.json without --config",
}
"""Maps a command, or a command with an option, to what to do instead."""
