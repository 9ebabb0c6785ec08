"""Rule `stall`: time in which no step ended."""

from perf_callbacks.advice.facts import WORTH, Facts, Measured
from perf_callbacks.kernel.records.fit_records import Finding

CAUSE = "stall"

REMEDY = "`perf-callbacks report`, which shows the stack of each rank that hung"

LIVE_REMEDY = "`perf-callbacks watch` or `perf-callbacks show`, which show the stack of the rank that hangs"


def stall(_facts: Facts, measured: Measured | None) -> Finding | None:
    """A stall that still lasts is always reported."""
    found = None if measured is None else measured.summary.stalls
    if measured is None or found is None or not found.count or not measured.seconds:
        return None
    share = min(1.0, found.seconds / measured.seconds)
    if share < WORTH and not found.under_way:
        return None
    last, seconds = measured.summary.step, f"{found.seconds:,.0f} s"
    if found.under_way and found.count == 1:
        said = f"The training hangs: no step has ended for {seconds} after step {last:,}"
    elif found.under_way:
        said = f"The training hangs after step {last:,}: its {found.count:,} stalls took {seconds}"
    else:
        number = "A stall" if found.count == 1 else f"{found.count:,} stalls"
        said = f"{number} took {seconds}"
    part = f"{share:.0%}" if share >= WORTH else "under 1%"
    where = f". {found.where.removesuffix('.')}" if found.where else ""
    remedy = LIVE_REMEDY if found.under_way else REMEDY
    return Finding(cause=CAUSE, share=share, evidence=f"{said}, {part} of the run{where}", remedy=remedy)
