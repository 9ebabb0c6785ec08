"""Sentences about stragglers."""

from collections.abc import Iterator, Mapping, Sequence

from perf_callbacks.kernel.plural import MOST_RANKS, plural
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.summary_parts import StragglerSummary
from perf_callbacks.stragglers.peers import DATA, DEVICE, GC, HOST, LEAST_PART, STEAL
from perf_callbacks.stragglers.slow_sets import SlowRank

NAMES = {
    GC: "garbage collection",
    DATA: "waiting for data",
    STEAL: "waiting for a CPU",
    DEVICE: "computing on the device",
    HOST: "other work on the host",
}

REMEDIES = {
    GC: "PERF_CALLBACKS_GC=sync, so that all ranks collect at the same step",
    DATA: "more loader workers, or data nearer to the rank",
    STEAL: "giving each rank separate CPUs: other processes use its CPUs",
    DEVICE: "comparing its device's clocks and temperature with other ranks' devices",
    HOST: "looking for work that one rank does alone: logging, callbacks, checkpoints",
}

SYNCED_REMEDIES = {**REMEDIES, GC: "removing calls of gc.collect()"}
"""`gc="sync"` synchronizes all collections except the program's own calls of `gc.collect()`."""

UNEVEN_BATCHES = "batches of even lengths: sorting samples by length, or packing"

UNEVEN_STAGES = "moving layers from the longest stage of the pipeline to other stages"

NOT_COMPARABLE = (
    "ranks not comparable: waits for other ranks are not seen. Seen are collectives of torch outside of compiled code, "
    "and the end of a backward whose gradients DistributedDataParallel reduces, if each backward of a step reaches the "
    "first layer of the measured model"
)
"""Waits for other ranks are not seen, so slow ranks can't be found."""

UNSTAGED = "ranks not comparable: stages are not timed on this device, or compiled code waits for other ranks"
"""Waits or stages on the devices are not seen."""

UNDECIDED = (
    "{} not compared: half of the ranks or more looked slow. On a device, so do ranks that wait for a slow rank where "
    "no wait is seen"
)
"""Healthy ranks may look slow."""

DIFFERENT_WORK = (
    "ranks not comparable: no two ranks do the same work, or ranks exchange tensors in pairs, and no device mesh says "
    "which ranks do the same work"
)
"""No two ranks do the same work."""

WORTH_A_LINE = 0.005
"""Part of the compared time above which a loss has a line of its own."""

MOST_LINES = 3

CHANCE = 0.02
"""Part of the compared time above which chance has a line of its own."""


def rank_names(ranks: Sequence[int]) -> str:
    """Name one rank or several.

    >>> rank_names([3]), rank_names([3, 7]), rank_names([3, 7, 9])
    ('rank 3', 'ranks 3 and 7', 'ranks 3, 7 and 9')
    """
    return f"rank{'' if len(ranks) == 1 else 's'} {rank_numbers(ranks)}"


def rank_numbers(ranks: Sequence[int]) -> str:
    """List the numbers of the ranks.

    >>> rank_numbers(range(100))
    '0, 1, 2, 3, 4, 5, 6, 7 and 92 more'
    """
    if len(ranks) == 1:
        return str(ranks[0])
    shown, last = [*map(str, ranks[:-1])], str(ranks[-1])
    if len(ranks) > MOST_RANKS:
        shown, last = [*map(str, ranks[:MOST_RANKS])], f"{len(ranks) - MOST_RANKS:,} more"
    return f"{', '.join(shown)} and {last}"


def slow_rank(slow: SlowRank, remedies: Mapping[str, str] = REMEDIES) -> str:
    """Warn about slow ranks in the log of a running fit.

    >>> print(slow_rank(SlowRank(rank=3, step=200, steps=100, share=0.12, causes={})))
    rank 3 was slow in the 100 steps up to step 200: its steps take 12% longer than those of a healthy rank.
    """
    causes = [f"{NAMES[cause]} {part:.0%}" for cause, part in slow.causes.items() if part >= LEAST_PART]
    why = f" ({', '.join(causes)}). Try {remedies[next(iter(slow.causes))]}." if causes else "."
    when = f"slow in the {slow.steps:,} steps up to step {slow.step:,}"
    if slow.ranks:
        return (
            f"{rank_names(slow.ranks)} were {when}: the job waits as long as one of them is slow, and the steps of "
            f"rank {slow.rank} take {slow.share:.0%} longer than those of a healthy rank{why}"
        )
    return f"rank {slow.rank} was {when}: its steps take {slow.share:.0%} longer than those of a healthy rank{why}"


def verdict_remedy(findings: Sequence[Finding]) -> str:
    """Return the remedy for slow ranks, or ""."""
    return next((finding.remedy for finding in findings if finding.cause == "straggler"), "")


def lines(stragglers: StragglerSummary | None, remedy: str = "") -> Iterator[str]:
    """Yield lines about the cost of stragglers, the costliest first; or why no step was compared.

    `remedy` is the verdict's for the costliest ranks, "" if it names none.
    """
    if stragglers is None or not stragglers.steps:
        yield from _not_comparable(stragglers)
        return
    several = stragglers.slowdown is not None or stragglers.undecided_steps > 0
    lost = sum(stragglers.seconds_by_cause.values())
    whole = f"{stragglers.seconds:,.3g} s"
    large = [entry for entry in stragglers.named() if entry[2] >= WORTH_A_LINE * stragglers.seconds]
    for ranks, cause, seconds, times in large[:MOST_LINES]:
        who = f"{rank_names(ranks)} cost the job" if several else "slow steps lost"
        count = plural(times, "pause" if cause == GC else "step")
        change = f"; try {remedy or REMEDIES[cause]}" if several else ""
        yield f"{who} {seconds:,.3g} s of {whole}: {NAMES[cause]}, {count}{change}"
        remedy = ""
    if not several:
        return
    rest = lost - sum([seconds for *_, seconds, _ in large[:MOST_LINES]])
    if not large and not stragglers.undecided_steps:
        yield f"no rank was slow for long: {lost:,.3g} s of {whole} lost to stragglers, in {stragglers.steps:,} steps"
    elif rest >= WORTH_A_LINE * stragglers.seconds:
        yield f"other stragglers cost {rest:,.3g} s"
    yield from _uneven(stragglers)
    yield from _not_compared(stragglers)
    if stragglers.backward_waiting is not None:
        yield f"at most {stragglers.backward_waiting:.0%} of backward on this rank was waiting for other ranks"


def _not_comparable(stragglers: StragglerSummary | None) -> Iterator[str]:
    if stragglers is not None and not stragglers.comparable:
        yield NOT_COMPARABLE if stragglers.waits_timed else UNSTAGED
    elif stragglers is not None and stragglers.other_work > 1:
        yield DIFFERENT_WORK


def _not_compared(stragglers: StragglerSummary) -> Iterator[str]:
    if stragglers.undecided_steps:
        yield UNDECIDED.format(plural(stragglers.undecided_steps, "step"))
    if stragglers.other_work:
        some = "1 rank was" if stragglers.other_work == 1 else f"{stragglers.other_work:,} ranks were"
        yield f"{some} not compared: no other rank does the same work"
    if not stragglers.waits_timed:
        yield "waits for other ranks within the backward are unknown on a device. Backward was not compared"
    if not stragglers.model_compared:
        yield "forward and optimizer were not compared: parameters are sharded, so ranks wait for each other there"


def _uneven(stragglers: StragglerSummary) -> Iterator[str]:
    """Yield lines about losses for which no rank is to blame."""
    for what, seconds, remedy in (
        ("uneven batches", stragglers.uneven_batches_seconds or 0.0, UNEVEN_BATCHES),
        ("uneven stages of the pipeline", stragglers.uneven_stages_seconds or 0.0, UNEVEN_STAGES),
    ):
        if seconds >= WORTH_A_LINE * stragglers.seconds:
            yield f"{what} cost the job {seconds:,.3g} s of {stragglers.seconds:,.3g} s; try {remedy}"
    if (stragglers.chance_seconds or 0.0) >= CHANCE * stragglers.seconds:
        lost = stragglers.chance_seconds
        yield f"chance cost {lost:,.3g} s: some rank is always the slowest, and no rank is to blame"
