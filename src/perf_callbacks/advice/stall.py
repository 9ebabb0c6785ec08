"""Rule `stall`: time in which no step ended."""

from perf_callbacks.advice.facts import Facts, Measured
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import WORTH

CAUSE = "stall"

REMEDY = "`perf-callbacks report`, which shows the stack of each rank that hung"

LIVE_REMEDY = "`perf-callbacks watch` or `perf-callbacks show`, which show the stack of the rank that hangs"


def stall(_facts: Facts, measured: Measured | None) -> Finding | None:
    """A stall that still lasts is always reported."""
    stalls = None if measured is None else measured.summary.stalls
    if measured is None or stalls is None or not stalls.count or not measured.seconds:
        return None
    share = min(1.0, stalls.seconds / measured.seconds)
    if share < WORTH and not stalls.under_way:
        return None
    last, seconds = measured.summary.step, f"{stalls.seconds:,.0f} s"
    if stalls.under_way and stalls.count == 1:
        what = f"The training hangs: no step has ended for {seconds} after step {last:,}"
    elif stalls.under_way:
        what = f"The training hangs after step {last:,}: its {stalls.count:,} stalls took {seconds}"
    else:
        number = "A stall" if stalls.count == 1 else f"{stalls.count:,} stalls"
        what = f"{number} took {seconds}"
    part = f"{share:.0%}" if share >= WORTH else "under 1%"
    where = f". {stalls.where.removesuffix('.')}" if stalls.where else ""
    remedy = LIVE_REMEDY if stalls.under_way else REMEDY
    return Finding(cause=CAUSE, share=share, evidence=f"{what}, {part} of the run{where}", remedy=remedy)
