"""Rules `straggler` and `uneven`: slow ranks that other ranks wait for, and work that is uneven over ranks."""

from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.stragglers import text


@timed
def straggler(facts: Facts, measured: Measured) -> Finding | None:
    """The share is the cost of all slow ranks."""
    stragglers = measured.summary.stragglers
    if stragglers is None or not stragglers.costliest:
        return None
    if stragglers.slowdown is None or not stragglers.seconds:  # a single process: other rules name the causes
        return None
    ranks, cause, seconds, _ = next(stragglers.named())
    part = sum(stragglers.seconds_by_cause.values()) / stragglers.seconds
    evidence = (
        f"The job waited for slow ranks for {part:.0%} of its steps, longest for {text.rank_names(ranks)}: "
        f"{text.NAMES[cause]}, {seconds:,.3g} s of {stragglers.seconds:,.3g} s"
    )
    remedy = (text.SYNCED_REMEDIES if facts.gc == "sync" else text.REMEDIES)[cause]
    share = part * measured.steps_seconds / measured.seconds
    return finding("straggler", share, evidence, remedy)


@timed
def uneven_batches(facts: Facts, measured: Measured) -> Finding | None:
    lost = measured.summary.stragglers
    seconds = None if lost is None else lost.uneven_batches_seconds
    rebalance = facts.option("train_sampling_strategy", '"batch_rebalance"')
    remedy = f"{rebalance} of transformers 5.23, or packing" if rebalance else text.UNEVEN_BATCHES
    return _uneven(measured, seconds, "Batches are uneven: ranks with less work waited", remedy)


@timed
def uneven_stages(_facts: Facts, measured: Measured) -> Finding | None:
    lost = measured.summary.stragglers
    seconds = None if lost is None else lost.uneven_stages_seconds
    cause = "Stages of the pipeline are uneven: the longest made the others wait"
    return _uneven(measured, seconds, cause, text.UNEVEN_STAGES)


def _uneven(measured: Measured, seconds: float | None, cause: str, remedy: str) -> Finding | None:
    lost = measured.summary.stragglers
    if lost is None or not lost.seconds or not seconds:
        return None
    part = seconds / lost.seconds
    evidence = f"{cause} for {part:.0%} of the steps, {seconds:,.3g} s of {lost.seconds:,.3g} s"
    return finding("uneven", part * measured.steps_seconds / measured.seconds, evidence, remedy)
