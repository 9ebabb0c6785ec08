"""Sentences about stragglers."""

from collections.abc import Iterator

from perf_callbacks.kernel.records.summary_parts import StragglerSummary
from perf_callbacks.stragglers.peers import DATA, DEVICE, GC, HOST, STEAL
from perf_callbacks.stragglers.slow_sets import SlowRank

NAMES = {
    GC: "garbage collection",
    DATA: "waiting for data",
    STEAL: "waiting for a CPU",
    DEVICE: "computing on the device",
    HOST: "other work on the host",
}
"""Causes in words."""

REMEDIES = {
    GC: 'PerfConfig(gc="sync"), so that all ranks collect at the same step',
    DATA: "more loader workers, or data nearer to the rank",
    STEAL: "giving each rank separate CPUs: other processes use its CPUs",
    DEVICE: "comparing its device's clocks and temperature with other ranks' devices",
    HOST: "looking for work that one rank does alone: logging, callbacks, checkpoints",
}
"""Changes that help, by cause."""

WORTH_A_LINE = 0.005
"""Least part of the compared time for which a loss has a line of its own."""

MOST_LINES = 3

SMALL = 0.1
"""Least part of a slow rank's delay for which a cause is named."""


def slow_rank(slow: SlowRank) -> str:
    """Return the sentence about a rank that is slow while training runs.

    >>> print(slow_rank(SlowRank(rank=3, step=200, steps=100, share=0.12, causes={})))
    rank 3 was slow in the 100 steps up to step 200: its steps take 12% longer than those of a usual rank.
    """
    causes = [f"{NAMES[cause]} {part:.0%}" for cause, part in slow.causes.items() if part >= SMALL]
    why = f" ({', '.join(causes)}). Try {REMEDIES[next(iter(slow.causes))]}." if causes else "."
    return (
        f"rank {slow.rank} was slow in the {slow.steps:,} steps up to step {slow.step:,}: "
        f"its steps take {slow.share:.0%} longer than those of a usual rank{why}"
    )


def lines(found: StragglerSummary | None) -> Iterator[str]:
    """Yield lines about the cost of stragglers, the worst first; no lines if no step was compared."""
    if found is None or not found.steps:
        return
    several, lost = found.slowdown is not None, sum(found.seconds_by_cause.values())
    whole = f"{found.seconds:,.3g} s"
    large = [one for one in found.costliest if one[2] >= WORTH_A_LINE * found.seconds]
    for rank, cause, seconds, times in large[:MOST_LINES]:
        who = f"rank {rank} cost the job" if several else "slow steps lost"
        count = f"{times:,} {'pause' if cause == GC else 'step'}{'' if times == 1 else 's'}"
        remedy = f"; try {REMEDIES[cause]}" if several else ""
        yield f"{who} {seconds:,.3g} s of {whole}: {NAMES[cause]}, {count}{remedy}"
    if not several:
        return
    rest = lost - sum([seconds for *_, seconds, _ in large[:MOST_LINES]])
    if not large:
        yield f"no rank was slow for long: {lost:,.3g} s of {whole} lost to stragglers, in {found.steps:,} steps"
    elif rest >= WORTH_A_LINE * found.seconds:
        yield f"other stragglers cost {rest:,.3g} s"
    if not found.model_compared:
        yield "forward and backward were not compared, because ranks wait for each other there"
    if found.backward_waiting is not None:
        yield f"at most {found.backward_waiting:.0%} of backward on this rank was waiting for other ranks"
